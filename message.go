package verbena

// A Message is what a peer sent. It belongs to the receiver until Release.
type Message struct {
	// Tag is what the sender gave to Send.
	Tag   uint32
	data  []byte
	owner messageOwner
	held  bool // the application has it; guarded by the owner's lock
}

type messageOwner interface{ release(*Message) }

// Bytes is the payload. The memory belongs to the runtime; it may be read and
// changed until Release, even when the endpoint or the runtime has been closed.
func (m *Message) Bytes() []byte { return m.data }

// Release gives the memory, and with it the credit to send more, back to the
// peer. It is called exactly once, by any goroutine; neither the message nor its
// bytes may be used afterwards. Receivers that hold many messages slow the
// sender down; one that holds them all stops it.
func (m *Message) Release() { m.owner.release(m) }
