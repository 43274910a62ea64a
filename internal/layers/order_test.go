package layers

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runtimeOrder is the root package from top to bottom. A file uses what is
// declared in its own row or in a lower one. Files of other systems stand here, too.
var runtimeOrder = [][]string{
	{"doc.go"},
	{"pool.go", "pool_calls.go", "pool_core.go", "pool_better.go"}, // endpoints for requests
	{ // dials and listens
		"runtime.go", "stats.go", "dial.go", "dial_candidates.go", "dial_ask.go", "connect.go", "peers.go", "reasons.go",
		"better.go", "listener.go", "admission.go", "handshake.go", "handshake_choose.go", "service.go", "legacy.go", "tickets.go",
	},
	{"transport.go"},
	{"group.go", "device.go"},
	{"calls.go", "calls_line.go", "request.go", "calls_stream.go", "calls_stream_send.go", "calls_stream_receive.go", "calls_serve.go", "calls_buffer.go", "calls_joined.go", "mux.go", "outbox.go"}, // calls on an endpoint
	{ // an endpoint, on a queue pair or a TCP connection
		"endpoint.go", "buffer.go", "buffer_checks.go", "buffer_debug.go", "credentials.go", "upcall.go", "try.go",
		"shell_upcall.go", "stream_upcall.go", "copies.go",
		"onesided.go", "onesided_batch.go", "onesided_prompt.go", "onesided_shell.go", "onesided_flight.go", "onesided_mixed.go", "onesided_asked.go", "onesided_served.go", "onesided_service.go", "onesided_exposed.go",
		"onesided_stream.go", "onesided_stream_served.go", "wrapped.go", "onesided_file.go", "onesided_buffer.go",
		"queuepair.go", "shell.go", "shell_pair.go", "shell_long.go", "shell_complete.go", "shell_send.go", "shell_buffer.go", "shell_receive.go", "shell_view.go", "shell_release.go", "shell_window.go", "shell_close.go",
		"stream.go", "stream_inbox.go", "stream_frame.go", "stream_memory.go", "stream_read.go", "stream_write.go", "stream_close.go", "stream_buffer.go", "stream_lane.go",
	},
	{"domain.go", "domain_workers.go", "domain_receives.go", "shares.go", "shares_long.go", "shares_trial.go", "receives.go", "receives_buffer.go", "receives_promise.go", "receives_retry.go", "receives_lent.go", "receives_recall.go", "message.go", "checks_off.go", "checks_on.go", "memory.go", "pace.go", "settling.go", "sendqueue.go", "window.go", "longmemory.go", "waits.go", "life.go", "stock.go", "lending.go", "registrations.go", "mapping.go", "mapping_linux.go", "mapping_other.go"}, // what endpoints on queue pairs share
	{"worker.go", "worker_poll.go", "runlist.go"},
	{ // the system
		"write_unix.go", "write_other.go", "pages_unix.go", "pages_other.go", "files_unix.go", "files_other.go",
		"credentials_linux.go", "credentials_other.go", "hangup_linux.go", "hangup_other.go", "rest_linux.go", "rest_other.go",
	},
	{"config.go", "tuning.go", "rules.go", "counters.go", "selection.go", "errors.go", "onesided_token.go"}, // words that all others use
}

// upward lists what still runs the other way, by file: what it uses of a higher
// row. It only shrinks: an entry that is not needed any more fails the test.
var upward = map[string][]string{}

// goFile is a file of the root package, parsed.
type goFile struct {
	name string
	tree *ast.File
}

func rootFiles(t *testing.T, set *token.FileSet, dir string) (files []goFile) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if ok, err := build.Default.MatchFile(dir, filepath.Base(name)); err != nil {
			t.Fatal(err)
		} else if !ok {
			continue // for another system
		}
		tree, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, goFile{filepath.Base(name), tree})
	}
	return files
}

// noPackages stands for every imported package: the test asks what the package
// uses of itself.
type noPackages struct{}

func (noPackages) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, filepath.Base(path))
	p.MarkComplete()
	return p, nil
}

// uses returns what each file uses of another: package-level names, and methods.
func uses(set *token.FileSet, files []goFile) map[[2]string][]string {
	info := types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	trees := make([]*ast.File, 0, len(files))
	for _, f := range files {
		trees = append(trees, f.tree)
	}
	config := types.Config{Importer: noPackages{}, Error: func(error) {}} // that nothing of other packages is known is no error here
	pkg, _ := config.Check(module, set, trees, &info)
	found := map[[2]string][]string{}
	for id, o := range info.Uses {
		if o == nil || o.Pkg() != pkg || !o.Pos().IsValid() {
			continue
		}
		name := o.Name()
		switch o := o.(type) {
		case *types.Func:
			if recv := o.Signature().Recv(); recv != nil {
				name = strings.TrimPrefix(types.TypeString(recv.Type(), types.RelativeTo(pkg)), "*") + "." + name
				if types.IsInterface(recv.Type()) {
					continue // who implements it stands above, who calls it below
				}
			}
		default:
			if o.Parent() != pkg.Scope() {
				continue
			}
		}
		from, to := filepath.Base(set.Position(id.Pos()).Filename), filepath.Base(set.Position(o.Pos()).Filename)
		if key := [2]string{from, to}; from != to && !slices.Contains(found[key], name) {
			found[key] = append(found[key], name)
		}
	}
	return found
}

func TestRuntimeReadsDownwards(t *testing.T) {
	set := token.NewFileSet()
	files := rootFiles(t, set, root)
	row := map[string]int{}
	for i, names := range runtimeOrder {
		for _, name := range names {
			row[name] = i
		}
	}
	for name := range row {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Errorf("runtimeOrder has %s, which is not there: take it out", name)
		}
	}
	for _, f := range files {
		if _, ok := row[f.name]; !ok {
			t.Errorf("%s has no place in runtimeOrder: give it one", f.name)
		}
	}
	found := uses(set, files)
	if len(found) < len(files) {
		t.Fatalf("%d files use %d others: the test does not see what they use", len(files), len(found))
	}
	left := map[string][]string{}
	for edge, names := range found {
		from, to := edge[0], edge[1]
		if row[to] >= row[from] {
			continue
		}
		for _, name := range names {
			if slices.Contains(upward[from], name) {
				left[from] = append(left[from], name)
				continue
			}
			t.Errorf("%s uses %s of %s, which stands above it", from, name, to)
		}
	}
	for from, names := range upward {
		for _, name := range names {
			if !slices.Contains(left[from], name) {
				t.Errorf("%s does not use %s any more: take it out of upward", from, name)
			}
		}
	}
}

// TestUsesAreFound shows uses two files that know each other: by a type, a function, a
// method, and a method of an embedded type.
func TestUsesAreFound(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"above.go": "package p\nimport \"net\"\ntype above struct { below; c net.Conn }\nfunc (above) speak() {}\nfunc make() *above { return nil }\n",
		"below.go": "package p\ntype below struct { up *above }\nfunc (b *below) do() { b.up.speak(); b.up.c.Close(); make() }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set := token.NewFileSet()
	found := uses(set, rootFiles(t, set, dir))
	for edge, want := range map[[2]string][]string{
		{"above.go", "below.go"}: {"below"},
		{"below.go", "above.go"}: {"above", "above.speak", "make"},
	} {
		got := found[edge]
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s uses %v of %s, want %v", edge[0], got, edge[1], want)
		}
	}
}
