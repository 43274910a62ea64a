package jobcmd

import (
	"fmt"
	"strings"

	"github.com/verbena-data/verbena/shuffle"
)

// Over tells how records went between processes, for a line that tells what was done: " over shm (one-sided)". It is empty if there
// was one process.
func Over(ways []shuffle.Way) string {
	var over []string
	for _, w := range ways {
		over = append(over, fmt.Sprintf("%s (%s)", w.Transport, w.Mode))
	}
	if len(over) == 0 {
		return ""
	}
	return " over " + strings.Join(over, " and ")
}
