package verbena

// A stage is how far the end of a shell has come. Stages only advance. An endpoint that
// is never connected passes from the first to the later ones, too.
type stage uint8

const (
	stageOpen     stage = iota // being connected, or connected
	stageGrounded              // no further one-sided operation begins
	stageClosing               // no further goroutine begins
	stageClosed                // the queue pair is closed: memory that comes back goes to the pools
	stageLeft                  // the domain counts the messages that are still held
)

// life is what has become of a shell. Its mu guards it.
type life struct {
	stage  stage
	stuck  bool // the queue pair could not be closed: the device may still use what it was given
	breach bool // the peer's: its messages are not looked at any more
}

// reached tells whether the end has come so far.
func (l *life) reached(s stage) bool { return l.stage >= s }

// advance notes that the end has come so far. What is behind already stays.
func (l *life) advance(s stage) { l.stage = max(l.stage, s) }
