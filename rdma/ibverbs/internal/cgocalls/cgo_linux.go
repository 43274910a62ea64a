//go:build linux && (amd64 || arm64) && !noibverbs && cgo && cgobench

package cgocalls

/*
#include <stdint.h>

// The inline functions of infiniband/verbs.h in miniature: operations are called
// through the context that a queue begins with. Addresses are integers, so that
// cgo has no pointers to check.
struct context {
	char before[96];
	int (*poll_cq)(uintptr_t cq, int n, uintptr_t wc);
	char between[104];
	int (*post_send)(uintptr_t qp, uintptr_t wr, uintptr_t bad);
};

static int post_send(uintptr_t qp, uintptr_t wr, uintptr_t bad) {
	return (*(struct context **)qp)->post_send(qp, wr, bad);
}

static int poll_cq(uintptr_t cq, int n, uintptr_t wc) {
	return (*(struct context **)cq)->poll_cq(cq, n, wc);
}

#cgo noescape post_send
#cgo nocallback post_send
#cgo noescape poll_cq
#cgo nocallback poll_cq
*/
import "C"

// PostSend posts as a program with cgo does, for comparison.
func PostSend(qp, wr, bad uintptr) int {
	return int(C.post_send(C.uintptr_t(qp), C.uintptr_t(wr), C.uintptr_t(bad)))
}

// PollCQ polls as a program with cgo does, for comparison.
func PollCQ(cq uintptr, n int, wc uintptr) int {
	return int(C.poll_cq(C.uintptr_t(cq), C.int(n), C.uintptr_t(wc)))
}
