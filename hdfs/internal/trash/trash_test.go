package trash

import (
	"testing"
	"time"
)

// A checkpoint's name tells its time, also beside others of that second and as Hadoop 1 had it.
func TestNamesTellTimes(t *testing.T) {
	at := time.Date(2026, 11, 29, 13, 4, 5, 0, time.Local)
	for attempt, want := range map[int]string{0: "261129130405", 1: "261129130405-1", 1000: "261129130405-1000"} {
		if got := Checkpoint(at, attempt); got != want {
			t.Errorf("%d: %s, want %s", attempt, got, want)
		}
		if got, ok := Time(want); !ok || !got.Equal(at) {
			t.Errorf("%s is of %v, %v", want, got, ok)
		}
	}
	if got, ok := Time("2611291304"); !ok || !got.Equal(at.Truncate(time.Minute)) {
		t.Errorf("of Hadoop 1: %v, %v", got, ok)
	}
	for _, name := range []string{Current, "mine", "", "26112913", "261329130405"} {
		if at, ok := Time(name); ok {
			t.Errorf("%q is of %v", name, at)
		}
	}
}
