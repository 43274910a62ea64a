package fscmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/verbena-data/verbena/hdfs"
)

// kept is what a copy keeps of its original, by Hadoop's letters.
type kept struct{ times, owner, mode, acl, attributes bool }

func parseKept(letters string) (k kept, err error) {
	for _, c := range letters {
		switch c {
		case 't':
			k.times = true
		case 'o':
			k.owner = true
		case 'p':
			k.mode = true
		case 'a':
			k.acl, k.mode = true, true
		case 'x':
			k.attributes = true
		default:
			return k, usage{fmt.Errorf("%q of -p%s is none of t (times), o (owner and group), p (permissions), a (ACL) and x (attributes)", c, letters)}
		}
	}
	return k, nil
}

// preserve gives a copy what its original has.
func (s *session) preserve(ctx context.Context, from, to string, info *hdfs.FileInfo, k kept) error {
	var errs []error
	if k.mode {
		errs = append(errs, s.client.Chmod(ctx, to, info.Mode()))
	}
	if k.acl && info.HasACL() {
		errs = append(errs, s.copyACL(ctx, from, to))
	}
	if k.attributes {
		errs = append(errs, s.copyAttributes(ctx, from, to))
	}
	if k.owner {
		errs = append(errs, s.client.Chown(ctx, to, info.Owner(), info.Group()))
	}
	if k.times {
		errs = append(errs, s.client.Chtimes(ctx, to, info.AccessTime(), info.ModTime()))
	}
	return errors.Join(errs...)
}

func (s *session) copyACL(ctx context.Context, from, to string) error {
	acl, err := s.client.ACL(ctx, from)
	if err != nil {
		return err
	}
	return s.client.SetACL(ctx, to, wholeACL(acl))
}

// wholeACL is a list with the entries that its mode stands for.
func wholeACL(acl *hdfs.ACL) []hdfs.ACLEntry {
	class := func(t hdfs.ACLType, shift int) hdfs.ACLEntry {
		return hdfs.ACLEntry{Type: t, Perm: acl.Mode.Perm() >> shift & 7}
	}
	group := class(hdfs.ACLGroup, 3)
	for _, e := range acl.Entries {
		if !e.Default {
			group = class(hdfs.ACLMask, 3) // the group's own entry is among the others
		}
	}
	return append([]hdfs.ACLEntry{class(hdfs.ACLUser, 6), group, class(hdfs.ACLOther, 0)}, acl.Entries...)
}

func (s *session) copyAttributes(ctx context.Context, from, to string) error {
	attributes, err := s.client.XAttrs(ctx, from)
	for i := 0; i < len(attributes) && err == nil; i++ {
		err = s.client.SetXAttr(ctx, to, attributes[i].Name, attributes[i].Value)
	}
	return err
}

// preserveLocal gives what was stored what the local original has.
func (s *session) preserveLocal(ctx context.Context, to string, info fs.FileInfo) error {
	owner, group, accessed := ownerOf(info)
	errs := []error{s.client.Chmod(ctx, to, info.Mode()&(fs.ModePerm|fs.ModeSticky))}
	if owner != "" {
		errs = append(errs, s.client.Chown(ctx, to, owner, group))
	}
	return errors.Join(append(errs, s.client.Chtimes(ctx, to, accessed, info.ModTime()))...)
}

// preserveHere gives what was fetched what its original has.
func preserveHere(local string, info *hdfs.FileInfo) error {
	uid, err := idOf(info.Owner(), func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
	if err != nil {
		return fmt.Errorf("%s: its owner %s is nobody here: %w", local, info.Owner(), err)
	}
	gid, err := idOf(info.Group(), func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	})
	if err != nil {
		return fmt.Errorf("%s: its group %s is none here: %w", local, info.Group(), err)
	}
	accessed := info.AccessTime()
	if accessed.UnixMilli() == 0 {
		accessed = time.Time{} // of a directory: nobody knows
	}
	return errors.Join(os.Chown(local, uid, gid), os.Chmod(local, fs.FileMode(octal(info.Mode()))&fs.ModePerm), os.Chtimes(local, accessed, info.ModTime()))
}

func idOf(name string, lookup func(string) (string, error)) (int, error) {
	text, err := lookup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}
