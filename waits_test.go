package verbena

import (
	"context"
	"testing"
)

// A receiver that sleeps wakes up for a message that is handed over, for one in the
// inbox, and for the endpoint's end; and it does not sleep if there is something to do.
func TestReceiverWakesUp(t *testing.T) {
	m := &Message{}
	for name, event := range map[string]func(*receiver){
		"handed over":  func(r *receiver) { r.give(m) },
		"in the inbox": func(r *receiver) { r.readable.Set(); r.tell() },
		"end":          (*receiver).wake,
	} {
		for _, before := range []bool{false, true} { // the event comes before it sleeps
			var r receiver
			r.init(nil)
			r.handing, r.asleep = true, true
			if before {
				event(&r)
			} else {
				go event(&r)
			}
			r.sleep(context.Background(), nil)
			if !r.ready() && before {
				t.Errorf("%s: awake, and nothing to do", name)
			}
		}
	}
}

// A message is handed over once, and only while somebody waits for one.
func TestReceiverIsHandedOne(t *testing.T) {
	var r receiver
	r.init(nil)
	m := &Message{}
	r.handing = true
	r.give(m)
	if r.handing || len(r.token) > 0 {
		t.Error("a second message would be handed over, or nobody was woken for nothing")
	}
	if !r.ready() || r.take() != m || r.ready() {
		t.Error("the message is not handed over once")
	}
}

// A sender that waits is told, and one that does not is left alone.
func TestSenderIsTold(t *testing.T) {
	var d sender
	d.init()
	if d.tell(); d.writable.Load() || len(d.token) > 0 {
		t.Error("told although nobody waits")
	}
	d.waiting = true
	d.tell()
	d.sleep(context.Background(), nil)
	if !d.writable.Load() {
		t.Error("it may not go on")
	}
	d.writable.Clear()
	over := make(chan struct{})
	close(over)
	<-d.token
	d.sleep(context.Background(), over)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	d.sleep(ctx, nil)
}
