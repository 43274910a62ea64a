package foreign

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func device(t testing.TB) rdma.Device {
	t.Helper()
	devices, err := iwarp.New(iwarp.Config{}).Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return devices[0]
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// The two sides of rping understand each other; that rping does is for the lab.
func TestRping(t *testing.T) {
	for _, size := range []int{20, 64, 5000, rpingMax} {
		ctx, d := bounded(t), device(t)
		l, err := d.Listen(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- ServeRping(ctx, d, l, 5) }()
		if err := PingRping(ctx, d, l.Address(), 5, size); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if err := <-served; err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A client that leaves early is noticed.
func TestRpingCountsRounds(t *testing.T) {
	ctx, d := bounded(t), device(t)
	l, err := d.Listen(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() { served <- ServeRping(ctx, d, l, 5) }()
	if err := PingRping(ctx, d, l.Address(), 3, 64); err != nil {
		t.Error(err)
	}
	if err := <-served; err == nil || !strings.Contains(err.Error(), "rping server: ") {
		t.Errorf("the server says %v", err)
	}
}

// What rping itself printed.
func TestRpingText(t *testing.T) {
	for n, want := range map[int]string{
		0: "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\x00",
		1: "rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs\x00",
	} {
		if got := string(rpingText(n, 64)); got != want {
			t.Errorf("round %d: %q, not %q", n, got, want)
		}
	}
}

func FuzzAdvertisement(f *testing.F) {
	f.Add(advertisement{rdma.Remote{Address: 1 << 40, Key: 7}, 64}.encode())
	f.Add(make([]byte, advertisementSize))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAdvertisement(b)
		if err != nil {
			return
		}
		if a.size == 0 || a.size > rpingMax {
			t.Errorf("a size of %d is taken", a.size)
		}
		if string(a.encode()) != string(b) {
			t.Errorf("%x comes back as %x", b, a.encode())
		}
	})
}

func FuzzDestination(f *testing.F) {
	f.Add(destination{5, rdma.Remote{Address: 1 << 40, Key: 7}}.encode())
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodeDestination(b)
		if err != nil {
			return
		}
		if again, err := decodeDestination(d.encode()); err != nil || again != d {
			t.Errorf("%+v comes back as %+v (%v)", d, again, err)
		}
	})
}
