package namespace

import "github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"

// Bounds on the calls that are remembered.
const (
	// retryMillis is how long an answered call is remembered, by the namespace's clock.
	retryMillis = 10 * 60 * 1000
	// maxTick is the most by which one entry moves that clock: one that comes with
	// a wrong time ages no call by more.
	maxTick = 60 * 1000
	// maxCalls is how many calls are remembered, the newest: 25 MB at most.
	maxCalls = 1 << 18
)

// callKey names a call for ever: a client makes its id at random and counts its calls.
type callKey struct {
	client [16]byte
	id     int32
}

type call struct {
	time  int64
	ok    bool
	inode uint64
}

type retryCache struct {
	places placeTable
	// order has them by time. Its elements never change, so that a version may share it.
	order []remembered
	// first is the number of the first one of order: calls are counted as they come, modulo 2^32.
	first uint32
}

type remembered struct {
	callKey
	call
}

// keyOf returns the key of an entry that is to be remembered.
func keyOf(e *nspb.Entry) (callKey, bool) {
	if len(e.GetClientId()) != 16 || e.CallId == nil {
		return callKey{}, false
	}
	return callKey{client: [16]byte(e.GetClientId()), id: e.GetCallId()}, true
}

// tick moves the clock by the time since the last entry, never back and by maxTick
// at most, and forgets the calls that are too old. So an entry whose time is a year
// ahead changes little, and those after it go on from their own times.
func (ns *Namespace) tick(millis int64) {
	if since := millis - ns.last; since > 0 {
		ns.clock += min(since, maxTick)
	}
	ns.last = millis
	rc := &ns.retry
	for len(rc.order) > 0 && rc.order[0].time <= ns.clock-retryMillis {
		rc.dropFirst()
	}
}

// get returns the call of a key, if it is remembered.
func (rc *retryCache) get(key callKey) (c call, ok bool) {
	ok = rc.places.numbers(key, func(number uint32) bool {
		r := &rc.order[number-rc.first]
		c = r.call
		return r.callKey == key
	})
	if !ok {
		c = call{}
	}
	return c, ok
}

// add remembers a call that is not.
func (rc *retryCache) add(key callKey, c call) {
	if len(rc.order) >= maxCalls {
		rc.dropFirst()
	}
	rc.places.add(key, rc.first+uint32(len(rc.order)))
	rc.order = append(rc.order, remembered{key, c})
}

func (rc *retryCache) dropFirst() {
	rc.places.remove(rc.order[0].callKey, rc.first)
	rc.order = rc.order[1:]
	rc.first++
}

// Answered returns the result of a call that has been answered before.
func (ns *Namespace) Answered(client [16]byte, id int32) (Result, bool) {
	c, ok := ns.retry.get(callKey{client, id})
	return Result{OK: c.ok, Inode: c.inode}, ok
}
