package job

import (
	"errors"
	"fmt"
	"testing"

	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/launch"
)

// What a process tells its parent is short, and says whether the reason is another process's: the parent tells of one that is not.
func TestOwn(t *testing.T) {
	reason := errors.New("no disk")
	aborted := fmt.Errorf("%w: %w", shuffle.ErrAborted, reason)
	for _, c := range []struct {
		err    error
		said   string
		others bool
	}{
		{reason, "no disk", false},
		{&shuffle.ProcessError{Rank: 1, Err: aborted}, "no disk", false},
		{&shuffle.ProcessError{Rank: 2, Err: aborted}, "process 2: shuffle: aborted: no disk", true},
		{&shuffle.ProcessError{Rank: 2, Err: shuffle.ErrPeerLost}, "process 2: shuffle: process lost", true},
		{fmt.Errorf("join: %w", &launch.OtherError{Err: reason}), "join: no disk", true},
		{&shuffle.ProcessError{Rank: 1, Err: fmt.Errorf("%w: %w", shuffle.ErrAborted, &launch.OtherError{Err: reason})}, "process 1: shuffle: aborted: no disk", true},
	} {
		if said, others := own(c.err, 1); said.Error() != c.said || others != c.others || !errors.Is(said, c.err) {
			t.Errorf("%v: %q, %v", c.err, said, others)
		}
	}
}
