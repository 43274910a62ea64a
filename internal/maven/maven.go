// Package maven has Apache Maven fetch jars of other projects, and what those need, for
// comparisons with programs in Java. They are kept in the user's cache directory. The
// package knows nothing of what the jars are for.
package maven

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// Hadoop is the release of Apache Hadoop that comparisons are made with.
const Hadoop = "3.4.1"

// An Artifact is a jar by its coordinates.
type Artifact struct {
	XMLName xml.Name `xml:"dependency"`
	Group   string   `xml:"groupId"`
	Name    string   `xml:"artifactId"`
	Version string   `xml:"version"`
	// Type is empty for an ordinary jar; "test-jar" is that of the project's tests.
	Type string `xml:"type,omitempty"`
}

type project struct {
	XMLName      xml.Name   `xml:"http://maven.apache.org/POM/4.0.0 project"`
	Model        string     `xml:"modelVersion"`
	Group        string     `xml:"groupId"`
	Name         string     `xml:"artifactId"`
	Version      string     `xml:"version"`
	Dependencies []Artifact `xml:"dependencies>dependency"`
}

// Cached returns the directory of jars for what is named so in messages. Unless it is
// there, it calls fetching, and Maven. Errors say what to install.
func Cached(ctx context.Context, name string, artifacts []Artifact, fetching func()) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return fetch(ctx, filepath.Join(cache, "verbena-jars"), name, artifacts, fetching)
}

// fetch makes cache/NAME-HASH, which is complete if it is there.
func fetch(ctx context.Context, cache, name string, artifacts []Artifact, fetching func()) (dir string, err error) {
	pom, err := xml.MarshalIndent(project{Model: "4.0.0", Group: "verbena", Name: name + "-jars", Version: "1", Dependencies: artifacts}, "", " ")
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, fmt.Sprintf("%s-%x", name, sha256.Sum256(pom))[:len(name)+1+12])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return "", fmt.Errorf("the jars of %s are not in %s, and Maven, which fetches them, is not installed (Debian: apt-get install maven): %w", name, cache, err)
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), pom, 0o644); err != nil {
		return "", err
	}
	fetching()
	arriving := filepath.Join(work, "lib")
	mvn := exec.CommandContext(ctx, "mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory="+arriving)
	mvn.Dir = work
	if out, err := mvn.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetching the jars of %s: mvn: %w\n%s", name, err, bytes.TrimSpace(out))
	}
	err = os.Rename(arriving, dir)
	if errors.Is(err, fs.ErrExist) {
		err = nil // another process has been faster
	}
	return dir, err
}
