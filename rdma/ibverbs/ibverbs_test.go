package ibverbs

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

func TestTranslate(t *testing.T) {
	for from, want := range map[verbs.Status]rdma.Status{
		verbs.StatusSuccess:          rdma.StatusSuccess,
		verbs.StatusFlushed:          rdma.StatusFlushed,
		verbs.StatusRemoteAccess:     rdma.StatusRemoteAccess,
		verbs.StatusRetryExceeded:    rdma.StatusRetryExceeded,
		verbs.StatusLocalLength:      rdma.StatusLocalLength,
		verbs.StatusGeneral:          rdma.StatusLocalOperation,
		verbs.StatusInvalidEEC:       rdma.StatusLocalOperation,
		verbs.Status(1 << 31):        rdma.StatusLocalOperation,
		verbs.StatusRemoteAborted:    rdma.StatusRemoteOperation,
		verbs.StatusLocalAccess:      rdma.StatusLocalProtection,
		verbs.StatusTagMatching:      rdma.StatusLocalOperation,
		verbs.StatusReceiverNotReady: rdma.StatusReceiverNotReady,
	} {
		if got := translate(from); got != want {
			t.Errorf("%s: %s, want %s", from, got, want)
		}
	}
	// Nothing but success may become success.
	for s := range verbs.Status(64) {
		if s != verbs.StatusSuccess && translate(s) == rdma.StatusSuccess {
			t.Errorf("%s is taken for success", s)
		}
	}
}

// Monitoring sees each field of Stats.
func TestCounters(t *testing.T) {
	p := New(Config{})
	var _ rdma.CountingProvider = p
	p.counters.lostCompletions.Store(3)
	p.counters.registered.Store(4096)
	got := p.Counters()
	if got["lost_completions"] != 3 || got["registered_bytes"] != 4096 || got["overruns"] != 0 {
		t.Errorf("%v", got)
	}
	if n := reflect.TypeFor[Stats]().NumField(); len(got) != n {
		t.Errorf("%d counters of %d", len(got), n)
	}
}

func TestReasons(t *testing.T) {
	if err := reason(rdma.StatusRemoteAccess); !errors.Is(err, rdma.ErrRemoteAccess) {
		t.Errorf("refused access: %v", err)
	}
	if err := reason(rdma.StatusRetryExceeded); !errors.Is(err, rdma.ErrDisconnected) {
		t.Errorf("silent peer: %v", err)
	}
}

func TestAckTimeoutCode(t *testing.T) {
	for d, want := range map[time.Duration]uint8{
		time.Nanosecond: 1, 8192 * time.Nanosecond: 1, 8193 * time.Nanosecond: 2,
		268 * time.Millisecond: 16, 10 * time.Hour: 31,
	} {
		if got := ackTimeoutCode(d); got != want {
			t.Errorf("%v: code %d, want %d", d, got, want)
		}
	}
}

func TestReceiverNotReady(t *testing.T) {
	for _, test := range []struct {
		bound   time.Duration
		retries uint8
	}{{-1, rnrForEver}, {0, 0}, {time.Microsecond, rnrMost}, {50 * time.Millisecond, rnrMost}, {2 * time.Second, rnrMost}, {time.Hour, rnrForEver}} {
		retries, timer := receiverNotReady(test.bound)
		if retries != test.retries {
			t.Errorf("%v: %d retries, want %d", test.bound, retries, test.retries)
		}
		if retries != rnrMost {
			continue
		}
		waits := time.Duration(retries) * time.Duration(rnrTimers[timer]) * time.Microsecond
		if waits < test.bound || waits > 2*test.bound+rnrMost*10*time.Microsecond {
			t.Errorf("%v: %d waits of code %d are %v", test.bound, retries, timer, waits)
		}
	}
}

// TestDevices runs on hosts with and without adapters: what is not there is
// explained.
func TestDevices(t *testing.T) {
	p := New(Config{})
	devices, err := p.Devices(t.Context())
	if err != nil {
		if !errors.Is(err, rdma.ErrUnavailable) {
			t.Errorf("error %v, want one that wraps ErrUnavailable", err)
		}
		if n := strings.Count(err.Error(), "not available"); n != 1 {
			t.Errorf("says %d times that there is none: %v", n, err)
		}
		return
	}
	for _, d := range devices {
		if a := d.Attributes(); a.Provider != p.Name() || a.Name == "" {
			t.Errorf("attributes %+v", a)
		}
	}
	again, err := p.Devices(t.Context())
	if err != nil || len(again) != len(devices) || again[0] != devices[0] {
		t.Errorf("asked again: %v, %v; want the same devices", again, err)
	}
	if _, err := New(Config{Device: "no such device"}).Devices(t.Context()); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("a device that is not there: error %v", err)
	}
}
