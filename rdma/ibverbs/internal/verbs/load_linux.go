//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/foreign"
)

// A Library is the loaded pair of libibverbs and librdmacm. There is one in a
// process, and it stays loaded.
type Library struct {
	fn      functions
	scratch scratchPool
}

// functions are the addresses of the exported calls.
type functions struct {
	getDeviceList, freeDeviceList, openDevice, closeDevice uintptr
	queryDevice, queryPort, queryGID                       uintptr
	allocPD, deallocPD, regMR, deregMR                     uintptr
	createCompChannel, destroyCompChannel                  uintptr
	createCQ, destroyCQ, getCQEvent, ackCQEvents           uintptr
	createSRQ, modifySRQ, destroySRQ                       uintptr
	createQP, modifyQP, queryQP, destroyQP                 uintptr
	getAsyncEvent, ackAsyncEvent                           uintptr

	createEventChannel, destroyEventChannel uintptr
	getCMEvent, ackCMEvent                  uintptr
	createID, destroyID, migrateID          uintptr
	bindAddr, resolveAddr, resolveRoute     uintptr
	listen, connect, accept, reject         uintptr
	disconnect, setOption                   uintptr
	initQPAttr, establish                   uintptr
	getDevices, freeDevices                 uintptr
}

// symbols lists the exported calls by library.
func (f *functions) symbols() map[string]map[string]*uintptr {
	return map[string]map[string]*uintptr{
		"libibverbs.so.1": {
			"ibv_get_device_list":      &f.getDeviceList,
			"ibv_free_device_list":     &f.freeDeviceList,
			"ibv_open_device":          &f.openDevice,
			"ibv_close_device":         &f.closeDevice,
			"ibv_query_device":         &f.queryDevice,
			"ibv_query_port":           &f.queryPort,
			"ibv_query_gid":            &f.queryGID,
			"ibv_alloc_pd":             &f.allocPD,
			"ibv_dealloc_pd":           &f.deallocPD,
			"ibv_reg_mr":               &f.regMR,
			"ibv_dereg_mr":             &f.deregMR,
			"ibv_create_comp_channel":  &f.createCompChannel,
			"ibv_destroy_comp_channel": &f.destroyCompChannel,
			"ibv_create_cq":            &f.createCQ,
			"ibv_destroy_cq":           &f.destroyCQ,
			"ibv_get_cq_event":         &f.getCQEvent,
			"ibv_ack_cq_events":        &f.ackCQEvents,
			"ibv_create_srq":           &f.createSRQ,
			"ibv_modify_srq":           &f.modifySRQ,
			"ibv_destroy_srq":          &f.destroySRQ,
			"ibv_create_qp":            &f.createQP,
			"ibv_modify_qp":            &f.modifyQP,
			"ibv_query_qp":             &f.queryQP,
			"ibv_destroy_qp":           &f.destroyQP,
			"ibv_get_async_event":      &f.getAsyncEvent,
			"ibv_ack_async_event":      &f.ackAsyncEvent,
		},
		"librdmacm.so.1": {
			"rdma_create_event_channel":  &f.createEventChannel,
			"rdma_destroy_event_channel": &f.destroyEventChannel,
			"rdma_get_cm_event":          &f.getCMEvent,
			"rdma_ack_cm_event":          &f.ackCMEvent,
			"rdma_create_id":             &f.createID,
			"rdma_destroy_id":            &f.destroyID,
			"rdma_migrate_id":            &f.migrateID,
			"rdma_bind_addr":             &f.bindAddr,
			"rdma_resolve_addr":          &f.resolveAddr,
			"rdma_resolve_route":         &f.resolveRoute,
			"rdma_listen":                &f.listen,
			"rdma_connect":               &f.connect,
			"rdma_accept":                &f.accept,
			"rdma_reject":                &f.reject,
			"rdma_disconnect":            &f.disconnect,
			"rdma_set_option":            &f.setOption,
			"rdma_init_qp_attr":          &f.initQPAttr,
			"rdma_establish":             &f.establish,
			"rdma_get_devices":           &f.getDevices,
			"rdma_free_devices":          &f.freeDevices,
		},
	}
}

// A needed is a library and the package of Debian that brings it.
type needed struct{ file, debian string }

// librdmacm is linked against libibverbs: this order names the right culprit.
var libraries = []needed{{"libibverbs.so.1", "ibverbs-providers"}, {"librdmacm.so.1", "librdmacm1"}}

// loaded is the process's library.
var loaded struct {
	mu      sync.Mutex
	library *Library
	err     error
}

// remember makes the library, and keeps it, or why it cannot be made, unless that
// may pass: a process that has no descriptor left just now finds no library.
func remember(make func() (*Library, error)) (*Library, error) {
	loaded.mu.Lock()
	defer loaded.mu.Unlock()
	if loaded.library == nil && loaded.err == nil {
		library, err := make()
		if rdma.Temporary(err) {
			return nil, err
		}
		loaded.library, loaded.err = library, err
	}
	return loaded.library, loaded.err
}

func newLibrary() (*Library, error) {
	l := &Library{}
	if err := l.resolve(libraries, l.fn.symbols()); err != nil {
		return nil, err
	}
	if err := foreign.Init(); err != nil {
		return nil, fmt.Errorf("verbs: %w: %w", ErrUnavailable, err)
	}
	return l, nil
}

// resolve opens the libraries and looks the symbols up, by library.
func (l *Library) resolve(libraries []needed, symbols map[string]map[string]*uintptr) error {
	for _, library := range libraries {
		handle, err := purego.Dlopen(library.file, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			if scarce := explainScarcity("load the library " + library.file); scarce != nil {
				return scarce
			}
			return fmt.Errorf("verbs: %w: the library %s can't be loaded (%w); install rdma-core's user space (Debian: apt-get install %s)",
				ErrUnavailable, library.file, err, library.debian)
		}
		for name, to := range symbols[library.file] {
			if *to, err = purego.Dlsym(handle, name); err != nil {
				return fmt.Errorf("verbs: %w: %s has no %s (%w); a newer rdma-core is needed", ErrUnavailable, library.file, name, err)
			}
		}
	}
	return nil
}

// Load opens the libraries, once in a process. Its error wraps [ErrUnavailable]
// and says what to install, or is one that [rdma.Temporary] tells of: then the next
// call tries again.
func Load() (*Library, error) { return remember(newLibrary) }

// call makes a control call that tells of failure by a result of -1 or a
// positive errno, as the verbs do, and wraps what it told.
func (l *Library) call(op string, fn uintptr, args ...uintptr) error {
	r, errno := l.raw(fn, args...)
	switch r := int32(r); {
	case r == 0:
		return nil
	case r > 0:
		errno = syscall.Errno(r)
	case r != -1:
		errno = syscall.Errno(-r)
	}
	return failure(op, errno)
}

// callPointer makes a control call that returns an object, or nil and errno.
func (l *Library) callPointer(op string, fn uintptr, args ...uintptr) (uintptr, error) {
	r, errno := l.raw(fn, args...)
	if r == 0 {
		return 0, failure(op, errno)
	}
	return r, nil
}

// callVoid makes a control call that can't fail, or whose failure would change
// nothing.
func (l *Library) callVoid(fn uintptr, args ...uintptr) { _, _ = l.raw(fn, args...) }

func (l *Library) raw(fn uintptr, args ...uintptr) (uintptr, syscall.Errno) {
	var a [6]uintptr
	copy(a[:], args)
	return foreign.Call(fn, a[0], a[1], a[2], a[3], a[4], a[5])
}

func failure(op string, errno syscall.Errno) error {
	if errno == 0 {
		return fmt.Errorf("verbs: %s failed and left no error number", op)
	}
	return &os.SyscallError{Syscall: "verbs: " + op, Err: errno}
}

// A scratch is a small piece of memory for the structures that a control call
// reads and writes. It is Go's: the heap does not move, the piece has no Go
// pointers, and no call keeps an address in it beyond its return. Whoever takes
// addresses in it keeps the scratch itself until the call is over.
type scratch struct {
	memory [4096]byte
	used   int
}

// A scratchPool has scratches, all zero.
type scratchPool struct{ pool sync.Pool }

func (p *scratchPool) get() *scratch {
	if s, ok := p.pool.Get().(*scratch); ok {
		return s
	}
	return new(scratch)
}

func (p *scratchPool) put(s *scratch) {
	clear(s.memory[:s.used])
	s.used = 0
	p.pool.Put(s)
}

// take is the address of n zeroed bytes, aligned to 8.
func (s *scratch) take(n int) uintptr {
	if s.used+n > len(s.memory) {
		panic("verbs: a control structure larger than its scratch memory")
	}
	p := uintptr(unsafe.Pointer(&s.memory[s.used]))
	s.used += (n + 7) &^ 7
	return p
}
