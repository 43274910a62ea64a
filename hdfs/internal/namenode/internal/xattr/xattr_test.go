package xattr

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/hadoop/exception"
)

func names(list []Attr) string {
	out := make([]string, len(list))
	for i, a := range list {
		out[i] = a.String()
	}
	return strings.Join(out, " ")
}

func wantClass(t *testing.T, err error, class exception.Class) {
	t.Helper()
	var refused *exception.Error
	if class == "" && err == nil {
		return
	}
	if !errors.As(err, &refused) || refused.Class != class {
		t.Errorf("%v, want %q", err, class)
	}
}

func TestAllowed(t *testing.T) {
	unreadable := Attr{Namespace: Security, Name: "hdfs.unreadable.by.superuser"}
	withValue := unreadable
	withValue.Value = []byte{1}
	for _, c := range []struct {
		attr           Attr
		superuser, raw bool
		want           exception.Class
	}{
		{Attr{Namespace: User, Name: "a"}, false, false, ""},
		{Attr{Namespace: Trusted, Name: "a"}, false, false, exception.AccessControl},
		{Attr{Namespace: Trusted, Name: "a"}, true, false, ""},
		{Attr{Namespace: System, Name: "a"}, true, true, exception.AccessControl},
		{Attr{Namespace: Security, Name: "a"}, true, true, exception.AccessControl},
		{Attr{Namespace: Raw, Name: "a"}, true, false, exception.AccessControl},
		{Attr{Namespace: Raw, Name: "a"}, false, true, ""},
		{unreadable, false, false, ""},
		{withValue, true, false, exception.AccessControl},
	} {
		wantClass(t, Allowed(c.attr, c.superuser, c.raw), c.want)
	}
}

func TestVisible(t *testing.T) {
	list := []Attr{{User, "a", nil}, {Trusted, "b", nil}, {Security, "c", nil}, {Security, "hdfs.unreadable.by.superuser", nil}, {System, "d", nil}, {Raw, "e", nil}}
	for _, c := range []struct {
		superuser, raw bool
		want           string
	}{
		{false, false, "user.a " + UnreadableBySuperuser},
		{true, false, "user.a trusted.b " + UnreadableBySuperuser},
		{false, true, "user.a " + UnreadableBySuperuser + " raw.e"},
	} {
		if got := names(Visible(list, c.superuser, c.raw)); got != c.want {
			t.Errorf("superuser %t, raw %t: %s, want %s", c.superuser, c.raw, got, c.want)
		}
	}
}

func TestSet(t *testing.T) {
	both := Flags{Create: true, Replace: true}
	a, b := Attr{User, "a", []byte{1}}, Attr{Trusted, "b", nil}
	list, err := Set(nil, a, both, 2, true)
	wantClass(t, err, "")
	for _, c := range []struct {
		attr  Attr
		flags Flags
		limit int
		want  exception.Class
	}{
		{b, Flags{}, 2, exception.IllegalArgument},
		{a, Flags{Create: true}, 2, exception.IO},
		{b, Flags{Replace: true}, 2, exception.IO},
		{b, both, 1, exception.IO},
		{a, both, 1, ""},
		{Attr{Raw, "x", nil}, both, 1, ""},
		{Attr{Security, "hdfs.unreadable.by.superuser", nil}, both, 1, exception.IO}, // it is no file
		{Attr{Raw, "hdfs.crypto.encryption.zone", nil}, both, 2, exception.UnsupportedOperation},
		{Attr{Raw, "hdfs.crypto.file.encryption.info", nil}, both, 2, exception.IO},
	} {
		_, err := Set(list, c.attr, c.flags, c.limit, false)
		wantClass(t, err, c.want)
	}
	// New ones come first, but large values last.
	list, _ = Set(list, Attr{User, "large", make([]byte, small+1)}, both, 9, true)
	list, _ = Set(list, b, both, 9, true)
	if got := names(list); got != "trusted.b user.a user.large" {
		t.Error(got)
	}
	if changed, _ := Set(list, Attr{User, "a", []byte{}}, both, 9, true); changed[0].Value != nil || list[1].Value == nil {
		t.Error("an empty value is none, and the list before stays as it was")
	}
	for i := range maxInAll - len(list) {
		if list, err = Set(list, Attr{Raw, fmt.Sprint(i), nil}, both, 9, true); err != nil {
			t.Fatal(err)
		}
	}
	wantClass(t, CheckList(list), "")
	_, err = Set(list, Attr{Raw, "more", nil}, both, 9, true)
	wantClass(t, err, exception.IO)
}

func TestRemove(t *testing.T) {
	unreadable := Attr{Namespace: Security, Name: "hdfs.unreadable.by.superuser"}
	list := []Attr{{User, "a", nil}, unreadable, {User, "b", nil}}
	for _, c := range []struct {
		list []Attr
		attr Attr
		left string
		want exception.Class
	}{
		{list, list[0], UnreadableBySuperuser + " user.b", ""},
		{list, Attr{Trusted, "a", nil}, "", exception.IO},
		{list, unreadable, "", exception.AccessControl},
		{nil, unreadable, "", exception.IO},
		{list, Attr{Raw, "hdfs.crypto.encryption.zone", nil}, "", exception.JavaIllegalArgument},
	} {
		left, err := Remove(c.list, c.attr, false)
		wantClass(t, err, c.want)
		if names(left) != c.left {
			t.Errorf("%s less %s: %s", names(c.list), c.attr, names(left))
		}
	}
}

func TestRemoveBesideOthers(t *testing.T) {
	_, err := Remove(nil, Attr{Namespace: Security, Name: "hdfs.unreadable.by.superuser"}, true)
	wantClass(t, err, exception.AccessControl)
}

func TestCheck(t *testing.T) {
	wantClass(t, Attr{Namespace: namespaces}.Check(), exception.IllegalArgument)
	wantClass(t, Attr{Name: strings.Repeat("n", MaxSizeLimit+1)}.Check(), exception.IllegalArgument)
	wantClass(t, CheckSize(Attr{Name: "n", Value: make([]byte, MaxSize)}, MaxSize), exception.IllegalArgument)
	wantClass(t, CheckSize(Attr{Name: "n", Value: make([]byte, MaxSize-1)}, MaxSize), "")
	wantClass(t, CheckList([]Attr{{User, "a", nil}, {User, "a", nil}}), exception.IO)
}
