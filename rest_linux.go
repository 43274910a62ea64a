package verbena

import (
	"time"

	"github.com/verbena-data/verbena/internal/futex"
)

// nobody is a word that nobody wakes.
var nobody uint32

// rest lets Go's processor serve others for a moment, and look at the network. The kernel
// makes it some 60 us.
func rest() { _ = futex.WaitIdle(&nobody, 0, time.Nanosecond) }
