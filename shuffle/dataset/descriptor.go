package dataset

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// descriptors are the directories with a process's open files.
var descriptors = regexp.MustCompile(`^(/dev|/proc/(self|thread-self|[0-9]+)(/task/[0-9]+)?)/fd$`)

// mostLinks bounds how many links lead to a file.
const mostLinks = 40

// Descriptor tells whether a local name is that of an open file, such as /dev/stdout or /dev/fd/63, be it by links, and which one of this
// process: -1 if it is another process's. No other file can take its place: a rename would put it where the open file has its name.
func Descriptor(name string) (number int, ok bool) {
	if Remote(name) {
		return 0, false
	}
	for range mostLinks {
		dir := filepath.Dir(name)
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dir = real
		}
		if m := descriptors.FindStringSubmatch(dir); m != nil {
			number, err := strconv.Atoi(filepath.Base(name))
			if err != nil {
				return 0, false
			}
			if pid := m[2]; pid != "" && pid != "self" && pid != "thread-self" && pid != fmt.Sprint(os.Getpid()) {
				number = -1
			}
			return number, true
		}
		to, err := os.Readlink(name)
		if err != nil {
			return 0, false
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		name = to
	}
	return 0, false
}
