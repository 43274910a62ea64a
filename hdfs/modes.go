package hdfs

import (
	"errors"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Modes of what is made and for which no mode is given, before the umask.
const (
	fileMode      = 0o666
	directoryMode = 0o777
)

// modes are what is made with: mode itself, or if that is 0 the default without the umask.
// unmasked has the bits of the umask, too: the NameNode takes it where a directory's default
// access control list replaces the umask.
func (c *Client) modes(mode fs.FileMode, byDefault uint32) (masked, unmasked *hdfspb.FsPermissionProto) {
	asked := bitsOf(mode)
	left := asked
	if mode == 0 {
		asked, left = byDefault, byDefault&^*c.cfg.Umask
	}
	return &hdfspb.FsPermissionProto{Perm: &left}, &hdfspb.FsPermissionProto{Perm: &asked}
}

// umaskClause is of a symbolic umask.
var umaskClause = regexp.MustCompile(`^([ugoa]*)[-+=]*([-+=])([rwx]*)$`)

// parseUmask reads what Hadoop's UmaskParser reads: octal digits, or what is not taken away,
// such as u=rwx,g=rx,o= for 027. What no clause names is taken away. Of two clauses for the
// same class the later one counts alone, so that + is as good as =, and - leaves nothing.
func parseUmask(text string) (uint32, error) {
	text = strings.TrimSpace(text)
	if n, err := strconv.ParseUint(text, 8, 32); err == nil && n <= 0o777 {
		return uint32(n), nil
	}
	var left uint32
	for clause := range strings.SplitSeq(strings.TrimRight(text, ", "), ",") {
		part := umaskClause.FindStringSubmatch(strings.TrimSpace(clause))
		if part == nil {
			return 0, errors.New("want an octal mode up to 777, or what is not taken away, such as u=rwx,g=rx,o=")
		}
		who := bitsOfLetters(part[1], map[rune]uint32{'u': 0o700, 'g': 0o070, 'o': 0o007})
		if who == 0 {
			who = 0o777
		}
		what := bitsOfLetters(part[3], map[rune]uint32{'r': 0o444, 'w': 0o222, 'x': 0o111})
		if part[2] == "-" {
			what = 0
		}
		left = left&^who | what&who
	}
	return 0o777 &^ left, nil
}

func bitsOfLetters(letters string, of map[rune]uint32) (bits uint32) {
	for _, c := range letters {
		bits |= of[c]
	}
	return bits
}
