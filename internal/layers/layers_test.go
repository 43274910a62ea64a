package layers

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/verbena-data/verbena"

// root is the module's folder, seen from where this test runs.
var root = filepath.Join("..", "..")

// goPackage is what `go list -json` tells of a package.
type goPackage struct {
	ImportPath   string
	Doc          string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Standard     bool
}

// rows is the tree from the bottom to the top, by the beginnings of paths; the
// longest one counts. A package imports from lower rows, and from what begins
// like itself.
var rows = [][]string{
	{"/internal"}, // small packages of one idea: none imports another, unless a row below names it
	{"/internal/link", "/internal/lane", "/internal/testnet", "/internal/latch", "/internal/biased", "/internal/waking"},
	{"/rdma"},
	{"/internal/slab", "/internal/call"}, // registered memory stands on the model, calls on link's words
	{""},                                 // the runtime
	{"/status"},
	{"/metrics", "/status/page", "/providers"},
	// The service kit stands beside rdmanet, not on it: a service of messages
	// does not link what carries streams.
	{"/rdmanet", "/hadoop", "/internal/port", "/internal/journal"},
	{"/hdfs"},
	{"/shuffle"}, // its jobs read and write through hdfs's client
	{"/cmd", "/soak", "/lab"},
}

// layerOf returns a package's row, and what it has in common with the packages
// that it may import from its own.
func layerOf(t *testing.T, path string) (row int, group string) {
	t.Helper()
	rest := strings.TrimPrefix(path, module)
	row = -1
	for i, prefixes := range rows {
		for _, prefix := range prefixes {
			if (rest == prefix || prefix != "" && strings.HasPrefix(rest, prefix+"/")) && (row < 0 || len(prefix) > len(group)) {
				row, group = i, prefix
			}
		}
	}
	if row < 0 {
		t.Fatalf("%s belongs to no layer: add its folder to rows, or move it", path)
	}
	if group == "/internal" { // each alone, with its own folders
		group, _, _ = strings.Cut(strings.TrimPrefix(rest, "/internal/"), "/")
	}
	return row, group
}

func packages(t *testing.T, args ...string) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Doc,Imports,TestImports,XTestImports,Standard"}, args...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, exit.Stderr)
		}
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	var list []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

func TestImportsGoDownOnly(t *testing.T) {
	for _, p := range packages(t, "./...") {
		row, group := layerOf(t, p.ImportPath)
		for _, imported := range p.Imports {
			if imported != module && !strings.HasPrefix(imported, module+"/") {
				continue
			}
			if to, other := layerOf(t, imported); to >= row && (other != group || to != row) {
				t.Errorf("%s imports %s, which is not below it", p.ImportPath, imported)
			}
		}
	}
}

// Whoever imports the runtime brings the providers, so that nothing is linked
// that the program does not use. So it depends on the model alone, and on small
// packages, down to the last one.
func TestRuntimeImportsTheModelAlone(t *testing.T) {
	for _, p := range packages(t, "-deps", module) {
		rest := strings.TrimPrefix(p.ImportPath, module)
		if rest == p.ImportPath || rest == "" {
			continue
		}
		if rest != "/rdma" && !strings.HasPrefix(rest, "/internal/") {
			t.Errorf("the runtime depends on %s", p.ImportPath)
		}
	}
}

// The endpoint's protocol is a machine: events in, posts out. What it could do
// I/O, wait, lock or read a clock with is its shell's, so what it imports is listed.
func TestEndpointProtocolDoesNoIO(t *testing.T) {
	pure := []string{"encoding/binary", "errors", "fmt", "math", "math/bits", module + "/internal/fifo"}
	machine := false
	for _, p := range packages(t, "./internal/...") {
		rest := strings.TrimPrefix(p.ImportPath, module)
		if rest != "/internal/link" && !strings.HasPrefix(rest, "/internal/link/") {
			continue
		}
		machine = true
		for _, imported := range p.Imports {
			if !slices.Contains(pure, imported) && !strings.HasPrefix(imported, module+"/internal/link") {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
	if !machine {
		t.Error("there is no internal/link")
	}
}

// A provider imports the model, what all providers share, and what is its own.
func TestProvidersDoNotKnowEachOther(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t, "./rdma/...") {
		name, _, _ := strings.Cut(strings.TrimPrefix(p.ImportPath, module+"/rdma/"), "/")
		if name != "shm" && name != "iwarp" && name != "ibverbs" {
			continue
		}
		seen[name] = true
		for _, imported := range p.Imports {
			of, inside := strings.CutPrefix(imported, module+"/rdma/")
			if of, _, _ = strings.Cut(of, "/"); inside && of != name && of != "internal" {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("providers seen: %v", seen)
	}
}

// The model, the providers, the runtime and its connections are for other
// people's programs: what they pull in beyond the standard library is listed
// here, on purpose.
func TestLibraryDependencies(t *testing.T) {
	system := []string{"golang.org/x/sys/"}
	netlink := []string{"golang.org/x/sys/", "github.com/vishvananda/"}
	for _, test := range []struct {
		what    []string
		allowed []string
	}{
		{[]string{"."}, system},
		{[]string{"./rdmanet"}, system},
		{[]string{"./rdma"}, nil},
		{[]string{"./rdma/shm"}, system},
		{[]string{"./rdma/iwarp"}, netlink}, // asks the kernel whose a local connection is
		{[]string{"./rdma/ibverbs", "./providers"}, append(netlink, "github.com/ebitengine/purego")},
	} {
		for _, p := range packages(t, append([]string{"-deps"}, test.what...)...) {
			if p.Standard || p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/") {
				continue
			}
			if !slices.ContainsFunc(test.allowed, func(prefix string) bool { return strings.HasPrefix(p.ImportPath, prefix) }) {
				t.Errorf("%v depends on %s", test.what, p.ImportPath)
			}
		}
	}
}

func TestEveryPackageTellsWhatItIsFor(t *testing.T) {
	for _, p := range packages(t, "./...") {
		if strings.HasSuffix(p.ImportPath, "pb") { // generated
			continue
		}
		if len(strings.Fields(p.Doc)) < 6 {
			t.Errorf("%s has no package comment that says what it is for", p.ImportPath)
		}
	}
}
