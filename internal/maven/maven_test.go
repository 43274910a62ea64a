package maven

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var artifacts = []Artifact{
	{Group: "org.example", Name: "thing", Version: "1.2"},
	{Group: "org.example", Name: "thing", Version: "1.2", Type: "test-jar"},
}

// program puts a script named mvn first in the path, or leaves the path empty.
func program(t *testing.T, script string) {
	t.Helper()
	bin := t.TempDir()
	if script == "" {
		t.Setenv("PATH", bin)
		return
	}
	if err := os.WriteFile(filepath.Join(bin, "mvn"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// copies does what Maven does with the arguments: it leaves the pom as a jar.
const copies = `for a; do case $a in -DoutputDirectory=*) d=${a#*=};; esac; done
mkdir -p "$d" && cp pom.xml "$d/thing.jar"
`

func TestFetchedOnce(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	program(t, copies)
	fetched := 0
	get := func(artifacts []Artifact) string {
		dir, err := fetch(context.Background(), cache, "thing", artifacts, func() { fetched++ })
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dir := get(artifacts)
	pom, err := os.ReadFile(filepath.Join(dir, "thing.jar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`<project xmlns="http://maven.apache.org/POM/4.0.0">`, "<modelVersion>4.0.0</modelVersion>",
		"<groupId>org.example</groupId>", "<artifactId>thing</artifactId>", "<version>1.2</version>", "<type>test-jar</type>",
	} {
		if !strings.Contains(string(pom), part) {
			t.Errorf("%s is not in %s", part, pom)
		}
	}
	program(t, "exit 1")
	if again := get(artifacts); again != dir || fetched != 1 {
		t.Errorf("%s, and %s, fetched %d times", dir, again, fetched)
	}
	program(t, copies)
	if other := get(artifacts[:1]); other == dir || fetched != 2 {
		t.Errorf("%s for other artifacts, fetched %d times", other, fetched)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "fetching-*")); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

func TestNotFetched(t *testing.T) {
	for _, c := range []struct{ script, says string }{
		{"", "apt-get install maven"},
		{"echo no network; mkdir -p lib; exit 3", "no network"},
	} {
		cache := filepath.Join(t.TempDir(), "cache")
		program(t, c.script)
		dir, err := fetch(context.Background(), cache, "thing", artifacts, func() {})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q, %v, want an error with %q", dir, err, c.says)
		}
		if left, _ := os.ReadDir(cache); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}
