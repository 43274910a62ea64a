package hosts

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

var now = time.UnixMilli(1_700_000_000_000)

type want struct {
	address, name string
	port          uint32
	state         State
}

func check(t *testing.T, l *List, wants ...want) {
	t.Helper()
	for _, w := range wants {
		if got := l.Rule(w.address, w.name, w.port, now); got.State != w.state {
			t.Errorf("%s %s:%d: state %d, want %d", w.address, w.name, w.port, got.State, w.state)
		}
	}
}

func read(t *testing.T, cfg Config) *List {
	t.Helper()
	l, err := Read(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestNames(t *testing.T) {
	check(t, nil, want{"10.0.0.1", "a", 1, InService})
	check(t, read(t, Config{Include: file(t, "# none\n"), Exclude: file(t, "10.0.0.2 10.0.0.3:9866\n::1 # loopback\n[::2]:7\n")}),
		want{"10.0.0.1", "a", 1, InService},
		want{"10.0.0.2", "b", 1, Decommissioned},
		want{"10.0.0.3", "c", 9866, Decommissioned},
		want{"10.0.0.3", "c", 9867, InService},
		want{"::1", "", 5, Decommissioned},
		want{"::2", "", 7, Decommissioned})
	l := read(t, Config{Include: file(t, "10.0.0.1\tlocalhost\n10.0.0.2\n"), Exclude: file(t, "10.0.0.2")})
	check(t, l,
		want{"10.0.0.1", "a", 1, InService},
		want{"127.0.0.1", "x", 1, InService}, // looked up
		want{"10.9.9.9", "LocalHost", 1, InService},
		want{"10.0.0.2", "b", 1, Decommissioned},
		want{"10.0.0.4", "d", 1, Refused})
	if !l.Names() {
		t.Error("the list admits all")
	}
	for _, bad := range []Config{{Include: file(t, "a:b")}, {Exclude: file(t, ":7")}, {Include: "/none/such"}} {
		if _, err := Read(t.Context(), bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

func TestCombined(t *testing.T) {
	for _, text := range []string{
		`[{"hostName":"10.0.0.1"},{"hostName":"10.0.0.2","port":50,"upgradeDomain":"x"},{"hostName":"10.0.0.3","adminState":"DECOMMISSIONED"},
		{"hostName":"10.0.0.4","adminState":"IN_MAINTENANCE","maintenanceExpireTimeInMS":"1700000000001"},{"hostName":"10.0.0.5","adminState":"IN_MAINTENANCE","maintenanceExpireTimeInMS":1700000000000},
		{"hostName":"10.0.0.6","adminState":"IN_MAINTENANCE"}]`,
		`{"hostName":"10.0.0.1"} {"hostName":"10.0.0.2","port":50} {"hostName":"10.0.0.3","adminState":"DECOMMISSIONED"}
		{"hostName":"10.0.0.4","adminState":"IN_MAINTENANCE","maintenanceExpireTimeInMS":"1700000000001"} {"hostName":"10.0.0.5","adminState":"IN_MAINTENANCE","maintenanceExpireTimeInMS":"1700000000000"}
		{"hostName":"10.0.0.6","adminState":"IN_MAINTENANCE"}`,
	} {
		check(t, read(t, Config{Include: file(t, text), Combined: true}),
			want{"10.0.0.1", "", 1, InService},
			want{"10.0.0.2", "", 50, InService},
			want{"10.0.0.2", "", 51, Refused},
			want{"10.0.0.3", "", 1, Decommissioned},
			want{"10.0.0.4", "", 1, Maintenance},
			want{"10.0.0.5", "", 1, InService}, // over
			want{"10.0.0.6", "", 1, Maintenance},
			want{"10.0.0.7", "", 1, Refused})
	}
	check(t, read(t, Config{Include: file(t, "[]"), Combined: true}), want{"10.0.0.7", "", 1, InService})
	for _, bad := range []string{`[{"port":1}]`, `[{"hostName":"a","adminState":"GONE"}]`, `[{"hostName":"10.0.0.1","adminState":"IN_MAINTENANCE","maintenanceExpireTimeInMS":"soon"}]`, `{`} {
		if _, err := Read(t.Context(), Config{Include: file(t, bad), Combined: true}); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
