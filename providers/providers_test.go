package providers

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

func TestDefault(t *testing.T) {
	var names []string
	for _, p := range Default() {
		names = append(names, p.Name())
		if _, err := p.Devices(context.Background()); err != nil && !errors.Is(err, rdma.ErrUnavailable) {
			t.Errorf("%s: %v", p.Name(), err)
		}
	}
	if !slices.Equal(names, Names()) {
		t.Errorf("names %v, providers %v", Names(), names)
	}
	if len(names)+len(Absent()) != len(table) {
		t.Errorf("%d providers and %v of %d", len(names), Absent(), len(table))
	}
	last := -1
	for _, name := range []string{"shm", "ibverbs", "iwarp"} {
		if i := slices.Index(names, name); i >= 0 {
			if i < last {
				t.Errorf("order %v, want shm before ibverbs before iwarp", names)
			}
			last = i
		}
	}
	again := Default()
	for i, p := range Default() {
		if p == again[i] {
			t.Errorf("%s is shared between two sets", p.Name())
		}
	}
}

// TestSettings sets each setting to what it takes and to what it does not.
func TestSettings(t *testing.T) {
	good := map[string][]string{
		"shm.socket-dir": {"/run/verbena"}, "shm.allow-uids": {"0", "1,2, 3"}, "shm.huge-pages": {"true", "off"},
		"shm.access-timeout": {"1s"}, "shm.shared-receive-slots": {"1024"},
		"iwarp.remote": {"true"}, "iwarp.allow-uids": {"1000"}, "iwarp.peer-timeout": {"1m"}, "iwarp.no-crc": {"yes"},
		"iwarp.markers": {"1"}, "iwarp.revision": {"1", "2"}, "iwarp.segment-sized": {"true"},
		"iwarp.not-peer-to-peer": {"true"}, "iwarp.speak-first": {"true"},
		"ibverbs.device": {"mlx5_0"}, "ibverbs.ack-timeout": {"1s"}, "ibverbs.retry-count": {"7"}, "ibverbs.keep-alive": {"5s", "never"}, "ibverbs.setup-timeout": {"1m"}, "ibverbs.close-timeout": {"2s"}, "ibverbs.huge-pages": {"no", "on"},
	}
	bad := map[string][]string{
		"shm.socket-dir": {strings.Repeat("/long", 100)}, "shm.allow-uids": {"", "root", "1,,2", "-1", "4294967295"}, "shm.huge-pages": {"", "maybe"},
		"shm.access-timeout": {"5", "-1s", "2h"}, "shm.shared-receive-slots": {"-1", "many", "99999999"},
		"iwarp.peer-timeout": {"0s", "200h"}, "iwarp.revision": {"3"}, "ibverbs.retry-count": {"0", "8"}, "ibverbs.setup-timeout": {"0s", "20"}, "ibverbs.close-timeout": {"-1s"}, "ibverbs.keep-alive": {"-1s", "no"}, "nothing.at-all": {"1"},
	}
	for _, e := range table {
		testFieldsAreReached(t, e, good)
	}
	for _, s := range Settings() {
		if len(good[s.Name]) == 0 || s.Usage == "" || s.Default == "" {
			t.Errorf("%+v is not tested, or not described", s)
		}
		for _, value := range good[s.Name] {
			if _, err := New(Config{Settings: map[string]string{s.Name: value}}); err != nil {
				t.Error(err)
			}
		}
		for _, value := range bad[s.Name] {
			if _, err := New(Config{Settings: map[string]string{s.Name: value}}); err == nil || !strings.Contains(err.Error(), s.Name) {
				t.Errorf("%s=%q: %v", s.Name, value, err)
			}
		}
	}
	if _, err := New(Config{Settings: map[string]string{"nothing.at-all": "1"}}); err == nil {
		t.Error("a setting that is not there")
	}
	if slices.Contains(Names(), "shm") {
		if _, err := New(Config{Settings: map[string]string{"shm.huge-pages": "true", "shm.allow-uids": "1"}}); err == nil {
			t.Error("huge pages beside other users")
		}
	}
}

// testFieldsAreReached looks for a field of a provider's configuration that no setting
// changes: nobody could use it but a program of his own.
func testFieldsAreReached(t *testing.T, e entry, good map[string][]string) {
	reached, all := map[string]bool{"Logger": true}, map[string]bool{}
	for _, s := range e.settings {
		for _, value := range good[s.Name] {
			c, err := e.try(s.Name, value)
			if err != nil {
				t.Error(err)
				continue
			}
			v := reflect.ValueOf(c)
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					all[f.Name] = true
					reached[f.Name] = reached[f.Name] || !v.Field(i).IsZero()
				}
			}
		}
	}
	for name := range all {
		if !reached[name] {
			t.Errorf("no setting of %s reaches the field %s of its configuration", e.name, name)
		}
	}
	if e.absent == "" && len(all) == 0 {
		t.Errorf("%s has no fields", e.name)
	}
}
