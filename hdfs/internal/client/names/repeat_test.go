package names

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Each method of ClientProtocol that the client calls by its name is known, so that a
// call whose answer is lost is made again.
func TestCalledMethodsAreKnown(t *testing.T) {
	const root = "../../../"
	files, err := filepath.Glob(root + "*.go")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(root + "internal/client/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	called := map[string]bool{}
	for _, file := range append(files, more...) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			method := calledMethod(n)
			if method == "" || method == "getReplicaVisibleLength" || method == "getDatanodeInfo" { // of DataNodes
				return true
			}
			called[method] = true
			if Repeatable(method) == 0 {
				t.Errorf("%s calls %s, of which nothing says how it may be repeated", file, method)
			}
			return true
		})
	}
	for _, method := range []string{"getFileInfo", "addBlock", "renameSnapshot", "renewLease"} {
		if !called[method] {
			t.Errorf("no call of %s was found", method)
		}
	}
}

// calledMethod is the method of a call by name: the last text before the request.
func calledMethod(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) < 4 {
		return ""
	}
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.EqualFold(function.Sel.Name, "call") {
		return ""
	}
	method := ""
	for _, arg := range call.Args {
		if text, ok := arg.(*ast.BasicLit); ok && text.Kind == token.STRING {
			method, _ = strconv.Unquote(text.Value)
		}
	}
	return method
}
