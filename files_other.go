//go:build !unix

package verbena

import "os"

func duplicate(f *os.File) (*os.File, error) { return os.Open(f.Name()) }
