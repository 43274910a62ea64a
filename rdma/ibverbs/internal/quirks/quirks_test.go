package quirks

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestEveryRowSaysHowItIsCalled(t *testing.T) {
	for name, row := range table {
		if row.Calls == CallAuto {
			t.Errorf("%s: its row does not say how it is called", name)
		}
		if got, known := Of(name); !known || *got != row {
			t.Errorf("%s: %+v, %v", name, got, known)
		}
	}
	if row, known := Of("no such driver"); known || row.Calls != CallNonBlockingPoll || row.Software {
		t.Errorf("an unknown driver: %+v, %v", row, known)
	}
}

// What the application may have outstanding fits into what the driver makes for it.
func TestDepthsFit(t *testing.T) {
	for _, row := range []Driver{{}, {OverlooksFirst: true}, {Garbles: Garbles{32, 4096}}, {OverlooksFirst: true, Garbles: Garbles{32, 4096}}} {
		for _, most := range []int{64, 65, 8192, 32767} {
			depth := row.MaxQueueDepth(most)
			if places, _ := row.SendDepth(depth, 1); places > most {
				t.Errorf("%+v: %d requests need %d places of %d", row, depth, places, most)
			}
			if places, _ := row.SendDepth(depth+1, 1); places <= most {
				t.Errorf("%+v: of %d places %d are promised, although %d would fit", row, most, depth, depth+1)
			}
		}
	}
	siw, _ := Of("siw")
	if places, entries := siw.SendDepth(8, 1); places != 18 || entries != 2 {
		t.Errorf("8 requests of one entry: %d places of %d entries, want 18 of 2", places, entries)
	}
}

func TestCut(t *testing.T) {
	g := Garbles{Length: 32, Page: 4096}
	for _, c := range []struct {
		address      uint64
		length, want int
	}{
		{0, 32, 0}, {4096 - 32, 32, 0}, {4096 - 31, 32, 31}, {4095, 2, 1}, {4095, 1, 0}, {4095, 33, 0}, {3 * 4096, 1, 0}, {1<<63 + 4090, 10, 6}, {4095, 0, 0},
	} {
		if got := g.Cut(c.address, c.length); got != c.want {
			t.Errorf("%d bytes at %#x are cut after %d, want %d", c.length, c.address, got, c.want)
		}
		if got := (Garbles{}).Cut(c.address, c.length); got != 0 {
			t.Errorf("a driver that garbles nothing: %d bytes at %#x are cut after %d", c.length, c.address, got)
		}
	}
}

// No code of the provider but the table names a driver.
func TestNamesStandHereAlone(t *testing.T) {
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "table.go" {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					if _, named := table[text]; named {
						t.Errorf("%s: the driver %q", files.Position(n.Pos()), text)
					}
				}
			case *ast.Ident:
				for _, name := range []string{"rxe", "siw"} {
					if strings.Contains(strings.ToLower(strings.ReplaceAll(n.Name, "IWARP", "")), name) {
						t.Errorf("%s: the name %s speaks of a driver", files.Position(n.Pos()), n.Name)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
