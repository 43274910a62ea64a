//go:build linux && (amd64 || arm64) && !noibverbs && cgo && cgobench

package verbs

import (
	"unsafe"

	"github.com/verbena-data/verbena/rdma/ibverbs/internal/cgocalls"
)

func init() {
	routes = append(routes, route{"cgo", func(f *fake, l *SendList) bool {
		if cgocalls.PostSend(f.qp.p, uintptr(unsafe.Pointer(&l.wrs[0])), uintptr(unsafe.Pointer(l.bad))) != 0 {
			return false
		}
		return cgocalls.PollCQ(f.cq.p, len(f.received.wcs), uintptr(unsafe.Pointer(&f.received.wcs[0]))) == 1
	}})
}
