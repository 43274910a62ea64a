package dataset

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExpand names directories, patterns and files, from the root and from where the process is. In HDFS it is the same: see the tests
// of the command.
func TestExpand(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"out/part-1", "out/part-0", "out/_SUCCESS", "out/.part-0.crc", "deep/a", "deep/sub/b", "deep/_logs/c", "none/_SUCCESS", "a[1]", "a1"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "out"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	files := &Files{Instead: map[string]string{"elsewhere": "/nowhere"}, Glob: func(root fs.FS, pattern string) ([]string, error) {
		found, err := fs.Glob(root, pattern[1:])
		for i := range found {
			found[i] = "/" + found[i]
		}
		return found, err
	}}
	for names, want := range map[string]string{
		"a1":                      "a1",
		"nowhere":                 "nowhere", // for Open to tell
		"link":                    "link/part-0 link/part-1",
		"./out/":                  "./out/part-0 ./out/part-1",
		dir + "/out":              dir + "/out/part-0 " + dir + "/out/part-1",
		"out/*":                   "out/part-0 out/part-1",
		"out/_*":                  "out/_SUCCESS",
		"deep/*":                  "deep/a deep/sub/b",
		dir + "/[od]*/[p-z]*":     dir + "/deep/sub/b " + dir + "/out/part-0 " + dir + "/out/part-1",
		"a[1]":                    "a[1]", // there is one of that name
		"a[12]":                   "a1",
		"a1 link link/part-1":     "a1 link/part-0 link/part-1 link/part-1",
		"none":                    "",
		"none/*":                  "none/*: no file matches this pattern",
		"a1 out/*.gz":             "out/*.gz: no file matches this pattern",
		"deep":                    "deep has a directory sub in it, which is no file: name what is to be read, such as deep/*",
		"elsewhere":               "elsewhere",
		"out/[":                   "out/[: ",
		"hdfs://somewhere:1/d a1": "there is no HDFS here",
	} {
		got, err := files.Expand(t.Context(), strings.Fields(names))
		if said := strings.Join(got, " "); err == nil && said != want || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %q, %v; want %q", names, said, err, want)
		}
	}
}
