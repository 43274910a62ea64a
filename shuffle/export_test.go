package shuffle

import "os"

// SpillTo makes spill files of another file, until restore.
func SpillTo(path string) (restore func()) {
	before := spillFileIn
	spillFileIn = func(string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR, 0) }
	return func() { spillFileIn = before }
}
