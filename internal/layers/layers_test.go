package layers

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const module = "github.com/verbena-data/verbena"

// goPackage is what `go list -json` tells of a package.
type goPackage struct {
	ImportPath   string
	Doc          string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Standard     bool
}

// rank orders the layers: a package imports what has a lower rank, or is of
// its own group. The longest matching prefix counts.
var rank = []struct {
	prefix string
	rank   int
	group  string
}{
	{"/internal", 0, "internal"},
	{"/rdma", 1, "rdma"},
	{"/internal/slab", 2, "slab"}, // registered memory: it stands on the model
	{"", 3, "runtime"},
	{"/metrics", 4, "metrics"},
	{"/providers", 4, "providers"},
	{"/rdmanet", 5, "rdmanet"},
	{"/hadoop/rpc", 5, "hadoop/rpc"},
	{"/hdfs", 6, "hdfs"},
	{"/cmd", 7, "cmd"},
	{"/soak", 7, "soak"},
	{"/lab", 7, "lab"},
}

func layerOf(t *testing.T, path string) (int, string) {
	t.Helper()
	rest := strings.TrimPrefix(path, module)
	best := -1
	for i, r := range rank {
		if rest == r.prefix || (r.prefix != "" && strings.HasPrefix(rest, r.prefix+"/")) {
			if best < 0 || len(r.prefix) > len(rank[best].prefix) {
				best = i
			}
		}
	}
	if best < 0 {
		t.Fatalf("%s belongs to no layer: add its folder to the table, or move it", path)
	}
	return rank[best].rank, rank[best].group
}

func packages(t *testing.T, args ...string) []goPackage {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Doc,Imports,TestImports,XTestImports,Standard"}, args...)...)
	cmd.Dir = filepath.Join(filepath.Dir(file), "..", "..")
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
		from, group := layerOf(t, p.ImportPath)
		for _, imported := range p.Imports {
			if imported != module && !strings.HasPrefix(imported, module+"/") {
				continue
			}
			to, other := layerOf(t, imported)
			if to >= from && other != group {
				t.Errorf("%s imports %s, which is not below it", p.ImportPath, imported)
			}
		}
	}
}

// The root package is the runtime: whoever imports it brings the providers, so
// that nothing is linked that the program does not use.
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

// The model and the runtime are for other people's programs: what they pull in
// beyond the standard library is listed here, on purpose.
func TestLibraryDependencies(t *testing.T) {
	allowed := []string{"golang.org/x/sys/", "github.com/ebitengine/purego", "github.com/vishvananda/", module}
	for _, p := range packages(t, "-deps", module+"/rdma/...") {
		if p.Standard || strings.Contains(p.ImportPath, "/rdmatest") {
			continue
		}
		ok := false
		for _, prefix := range allowed {
			ok = ok || strings.HasPrefix(p.ImportPath, prefix)
		}
		if !ok && !strings.Contains(p.ImportPath, "goleak") {
			t.Errorf("rdma depends on %s", p.ImportPath)
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
