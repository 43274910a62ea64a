//go:build !unix

package launch

import "io/fs"

// owns cannot tell whose a file is.
func owns(fs.FileInfo) bool { return true }
