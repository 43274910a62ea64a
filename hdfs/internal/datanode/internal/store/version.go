package store

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Identity tells whose blocks a directory holds.
type Identity struct {
	DatanodeUUID string
	ClusterID    string // empty until the first registration
	BlockPoolID  string // empty until the first registration
}

const (
	layoutVersion  = "1"
	storageKey     = "storageID"
	maxVersionFile = 4 << 10
)

var errVersion = errors.New("damaged VERSION file")

// versionKeys end with one that files of earlier releases lack.
var versionKeys = []string{"layoutVersion", "datanodeUuid", "clusterID", "blockpoolID", storageKey}

// encodeVersion makes the file of the storage with the given id.
func encodeVersion(id Identity, storage string) ([]byte, error) {
	var b strings.Builder
	for i, v := range []string{layoutVersion, id.DatanodeUUID, id.ClusterID, id.BlockPoolID, storage} {
		if strings.ContainsAny(v, "\n\r=") || len(v) > 256 {
			return nil, fmt.Errorf("identity %q: %s must be one line of at most 256 bytes without '='", v, versionKeys[i])
		}
		fmt.Fprintf(&b, "%s=%s\n", versionKeys[i], v)
	}
	return []byte(b.String()), nil
}

func decodeVersion(b []byte) (id Identity, storage string, err error) {
	if len(b) > maxVersionFile {
		return id, "", fmt.Errorf("%w: longer than %d bytes", errVersion, maxVersionFile)
	}
	var values [5]string
	seen := 0
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return id, "", fmt.Errorf("%w: line %q is not key=value", errVersion, line)
		}
		for i, k := range versionKeys {
			if k == key {
				values[i] = value
				seen |= 1 << i
			}
		}
	}
	if needed := len(versionKeys) - 1; seen&(1<<needed-1) != 1<<needed-1 {
		return id, "", fmt.Errorf("%w: it must have the keys %s", errVersion, strings.Join(versionKeys[:needed], ", "))
	}
	if values[0] != layoutVersion {
		return id, "", fmt.Errorf("%w: layout version %q, this program knows %s", errVersion, values[0], layoutVersion)
	}
	if values[1] == "" {
		return id, "", fmt.Errorf("%w: datanodeUuid is empty", errVersion)
	}
	return Identity{DatanodeUUID: values[1], ClusterID: values[2], BlockPoolID: values[3]}, values[4], nil
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// readSmall returns a whole file of at most limit bytes; ok is false if there is none.
func readSmall(fs vfs.FS, name string, limit int) (b []byte, ok bool, err error) {
	f, err := fs.Open(name)
	if oserror.IsNotExist(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	b, err = io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, false, err
	}
	if len(b) > limit {
		return nil, false, fmt.Errorf("%s is longer than %d bytes", name, limit)
	}
	return b, true, nil
}

// replaceFile puts b at name so that after a crash the old or the new contents
// are there.
func replaceFile(fs vfs.FS, name string, b []byte) error {
	tmp := name + tmpSuffix
	f, err := fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := fs.Rename(tmp, name); err != nil {
		return err
	}
	return syncDir(fs, fs.PathDir(name))
}

func syncDir(fs vfs.FS, name string) error {
	d, err := fs.OpenDir(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
