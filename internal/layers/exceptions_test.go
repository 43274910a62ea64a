package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// javaException is the name of a Java exception's class in a text.
var javaException = regexp.MustCompile(`\b(java|javax|org\.apache)\.[\w.$]+(Exception|Error|\$InvalidToken|\$VersionMismatch)\b`)

// Hadoop's clients act on the names of exceptions, so one that is spelt twice can be
// spelt wrong once. hadoop/exception has them all. Tests compare with what they saw on
// the wire, and programs that drive Apache's own code are no part of this.
func TestJavaExceptionsAreDeclaredOnce(t *testing.T) {
	declared := map[string]token.Position{}
	set := token.NewFileSet()
	for _, top := range []string{"hadoop", "hdfs", "cmd", "shuffle", "internal", "rdmanet"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go") {
				return err
			}
			tree, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			home := strings.HasPrefix(path, filepath.Join(root, "hadoop", "exception")+string(filepath.Separator))
			ast.Inspect(tree, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, _ := strconv.Unquote(lit.Value)
				name := javaException.FindString(text)
				at := set.Position(lit.Pos())
				switch {
				case name == "":
				case !home:
					t.Errorf("%s spells %s: use the constant of hadoop/exception", at, name)
				case declared[name].Filename != "":
					t.Errorf("%s declares %s again, after %s", at, name, declared[name])
				default:
					declared[name] = at
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(declared) < 10 {
		t.Errorf("hadoop/exception declares %d exceptions: the test looks at the wrong place", len(declared))
	}
}
