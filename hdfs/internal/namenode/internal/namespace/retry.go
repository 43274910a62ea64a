package namespace

import "github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"

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
	calls map[callKey]call
	order []callKey // by time
}

// keyOf returns the key of an entry that is to be remembered.
func keyOf(e *nspb.Entry) (callKey, bool) {
	if len(e.GetClientId()) != 16 || e.CallId == nil {
		return callKey{}, false
	}
	return callKey{client: [16]byte(e.GetClientId()), id: e.GetCallId()}, true
}

func (rc *retryCache) add(key callKey, c call) {
	rc.calls[key] = c
	rc.order = append(rc.order, key)
}

func (rc *retryCache) expire(before int64) {
	n := 0
	for n < len(rc.order) && rc.calls[rc.order[n]].time < before {
		delete(rc.calls, rc.order[n])
		n++
	}
	if n > 0 {
		rc.order = rc.order[n:]
	}
}

// Answered returns the result of a call that has been answered before.
func (ns *Namespace) Answered(client [16]byte, id int32) (Result, bool) {
	c, ok := ns.retry.calls[callKey{client, id}]
	return Result{OK: c.ok, Inode: c.inode}, ok
}
