package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena/hdfs"
)

// hedge has a DataNode take connections and say nothing. Reads that are begun at a second
// one after 50 ms find every byte; without that they would wait for a minute.
func (t *apacheTrial) hedge(ctx context.Context) (err error) {
	name := t.dir + "/stored-9449529"
	cfg := t.cfg
	cfg.HedgeAfter = 50 * time.Millisecond
	cfg.NoLocalReads = true // its port for calls, which would be asked for a socket, refuses at once
	client, err := hdfs.NewClient(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	where, err := client.BlockLocations(ctx, name, 0, 1)
	if err != nil {
		return err
	}
	silent := where[0].DataNodes[0].Address
	if _, err := t.a.ask("stop", silent); err != nil {
		return err
	}
	l, err := net.Listen("tcp", silent)
	if err != nil {
		return err
	}
	var taken atomic.Int64
	var open []net.Conn
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed below
			}
			taken.Add(1)
			open = append(open, conn)
		}
	}()
	defer func() {
		err = errors.Join(err, l.Close())
		<-ended
		for _, conn := range open {
			_ = conn.Close() // the client may have
		}
		_, started := t.a.ask("start")
		err = errors.Join(err, started)
	}()
	want := named(name, 9<<20+12_345)
	got := make([]byte, 100_000)
	const patience, least = 20 * time.Second, 3
	for tries := range 100 { // the NameNode names the DataNodes in any order
		if err := t.readHedged(ctx, client, name, want, got, int64(tries*7919), patience); err != nil {
			return err
		}
		if taken.Load() >= least {
			return nil
		}
	}
	return fmt.Errorf("of 100 reads only %d went to the DataNode that hangs", taken.Load())
}

func (t *apacheTrial) readHedged(ctx context.Context, client *hdfs.Client, name string, want, got []byte, at int64, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	f, err := client.Open(ctx, name)
	if err != nil {
		return err
	}
	if _, err := f.ReadAt(got, at); err != nil {
		return errors.Join(err, f.Close())
	}
	if !bytes.Equal(got, want[at:at+int64(len(got))]) {
		return errors.Join(errors.New("other bytes came back"), f.Close())
	}
	return f.Close()
}

// asAda is a client of somebody who is not the superuser.
func (t *apacheTrial) asAda() (*hdfs.Client, error) {
	cfg := t.cfg
	cfg.User = "ada"
	return hdfs.NewClient(cfg)
}

// sameACL compares a list as both clients see it.
func (t *apacheTrial) sameACL(ctx context.Context, name, want string) error {
	told, err := t.a.ask("acl", name)
	if err != nil {
		return err
	}
	a, err := t.client.ACL(ctx, name)
	if err != nil {
		return err
	}
	var words []string
	for _, e := range a.Entries {
		words = append(words, e.String())
	}
	ours := fmt.Sprintf("%o %s", a.Mode, strings.Join(words, ","))
	if ours != strings.TrimSpace(want) && ours != want || strings.TrimSpace(told) != strings.TrimSpace(want) {
		return fmt.Errorf("%s: our client sees %q, Apache's %q, want %q", name, ours, told, want)
	}
	return nil
}

func (t *apacheTrial) acls(ctx context.Context) (err error) {
	ada, err := t.asAda()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ada.Close()) }()
	dir := t.dir + "/acl"
	file, below := dir+"/file", dir+"/below"
	entries := func(text string) []hdfs.ACLEntry {
		list, perr := hdfs.ParseACL(text, true)
		err = errors.Join(err, perr)
		return list
	}
	refused := func(err error, as error, what string) error {
		if !errors.Is(err, as) {
			return fmt.Errorf("%s: %w", what, errors.Join(errors.New("it is not refused as it should"), err))
		}
		return nil
	}
	content := []byte("only for some")
	for _, step := range []func() error{
		func() error { return t.client.WriteFile(ctx, file, content, 0o640) },
		func() error { return t.client.Chmod(ctx, t.dir, 0o755) },
		func() error { return t.client.Chmod(ctx, dir, 0o755) },
		func() error {
			_, err := ada.ReadFile(ctx, file)
			return refused(err, fs.ErrPermission, "read without an entry")
		},
		func() error {
			return t.client.SetACL(ctx, file, entries("user::rw-,user:ada:r--,group::r--,other::---"))
		},
		func() error { return t.sameACL(ctx, file, "640 user:ada:r--,group::r--") },
		func() error {
			got, err := ada.ReadFile(ctx, file)
			if err == nil && !bytes.Equal(got, content) {
				err = errors.New("other bytes came back")
			}
			return err
		},
		func() error {
			return refused(ada.ModifyACL(ctx, file, entries("user:ada:rwx")), fs.ErrPermission, "a change by who is not the owner")
		},
		func() error { return t.client.ModifyACL(ctx, file, entries("user:bob:rwx,mask::r-x")) },
		func() error { return t.sameACL(ctx, file, "650 user:ada:r--,user:bob:rwx,group::r--") },
		func() error { _, err := t.a.ask("modifyacl", file, "group:staff:rw-,user:ada:---"); return err },
		func() error { return t.sameACL(ctx, file, "670 user:ada:---,user:bob:rwx,group::r--,group:staff:rw-") },
		func() error {
			_, err := ada.ReadFile(ctx, file)
			return refused(err, fs.ErrPermission, "read with no bit")
		},
		func() error {
			return t.client.RemoveACLEntries(ctx, file, []hdfs.ACLEntry{{Type: hdfs.ACLUser, Name: "bob"}, {Type: hdfs.ACLGroup, Name: "staff"}})
		},
		func() error { return t.sameACL(ctx, file, "640 user:ada:---,group::r--") },
		func() error { return t.client.RemoveACL(ctx, file) },
		func() error { return t.sameACL(ctx, file, "640 ") },
		func() error {
			var told *hdfs.ServerError
			if err := t.client.SetACL(ctx, file, entries("user:ada:r--")); !errors.As(err, &told) {
				return fmt.Errorf("a list without the owner's entry: %w", errors.Join(errors.New("it is not refused"), err))
			}
			return nil
		},
		func() error { return t.client.SetACL(ctx, dir, entries("default:user:ada:rwx,default:other::---")) },
		func() error {
			return t.sameACL(ctx, dir, "755 default:user::rwx,default:user:ada:rwx,default:group::r-x,default:mask::rwx,default:other::---")
		},
		func() error { return t.client.WriteFile(ctx, below, content, 0o644) },
		func() error { return t.sameACL(ctx, below, "640 user:ada:rwx,group::r-x") },
		func() error { return t.client.RemoveDefaultACL(ctx, dir) },
		func() error { return t.sameACL(ctx, dir, "755 ") },
	} {
		if serr := step(); serr != nil || err != nil {
			return errors.Join(err, serr)
		}
	}
	return nil
}

// sameXAttrs compares attributes as both clients see them: name=value in hexadecimal, by name.
func (t *apacheTrial) sameXAttrs(ctx context.Context, name string, want ...string) error {
	told, err := t.a.ask("xattrs", name)
	if err != nil {
		return err
	}
	list, err := t.client.XAttrs(ctx, name)
	if err != nil {
		return err
	}
	var words []string
	for _, x := range list {
		words = append(words, x.Name+"="+hex.EncodeToString(x.Value))
	}
	slices.Sort(words)
	if ours := strings.Join(words, ","); ours != strings.Join(want, ",") || told != ours {
		return fmt.Errorf("%s: our client sees %q, Apache's %q, want %q", name, ours, told, want)
	}
	return nil
}

func (t *apacheTrial) xattrs(ctx context.Context) error {
	file := t.dir + "/xattr"
	refused := func(err error) error {
		var told *hdfs.ServerError
		if !errors.As(err, &told) {
			return errors.Join(errors.New("it is not refused by the NameNode"), err)
		}
		return nil
	}
	const limit = 16_384 // of a name without its namespace and the value
	large := bytes.Repeat([]byte("v"), limit-len("large"))
	for i, step := range []func() error{
		func() error { return t.client.WriteFile(ctx, file, nil, 0o644) },
		func() error { return t.sameXAttrs(ctx, file) },
		func() error { return t.client.CreateXAttr(ctx, file, "user.a", []byte("first")) },
		func() error { return refused(t.client.CreateXAttr(ctx, file, "user.a", []byte("second"))) },
		func() error { return refused(t.client.ReplaceXAttr(ctx, file, "user.b", nil)) },
		func() error { return t.sameXAttrs(ctx, file, "user.a=6669727374") },
		func() error { return t.client.ReplaceXAttr(ctx, file, "user.a", []byte{0, 0xff}) },
		func() error { return t.client.SetXAttr(ctx, file, "trusted.b", nil) },
		func() error { _, err := t.a.ask("setxattr", file, "user.c", "theirs"); return err },
		func() error { return t.sameXAttrs(ctx, file, "trusted.b=", "user.a=00ff", "user.c=746865697273") },
		func() error { return t.client.RemoveXAttr(ctx, file, "user.c") },
		func() error { return refused(t.client.RemoveXAttr(ctx, file, "user.c")) },
		func() error { return t.client.RemoveXAttr(ctx, file, "user.a") },
		func() error { return t.client.SetXAttr(ctx, file, "user.large", large) },
		func() error { return refused(t.client.SetXAttr(ctx, file, "user.large", append(large, 'v'))) },
		func() error { return t.sameXAttrs(ctx, file, "trusted.b=", "user.large="+hex.EncodeToString(large)) },
		func() error { return refused(t.client.SetXAttr(ctx, file, "system.a", nil)) },
		func() error {
			if err := t.client.SetXAttr(ctx, file, "nobody.a", nil); !errors.Is(err, fs.ErrInvalid) {
				return errors.Join(errors.New("a name space that there is not"), err)
			}
			return nil
		},
	} {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// trash has either client move files to the trash, which the NameNode says is kept, and
// finds them where both would put them.
func (t *apacheTrial) trash(ctx context.Context) error {
	content := []byte("kept")
	root := "/user/root/.Trash"
	for _, who := range []string{"ours", "theirs"} {
		name := t.dir + "/trash/" + who
		if err := t.client.WriteFile(ctx, name, content, 0o644); err != nil {
			return err
		}
		to := root + "/Current" + name
		if who == "ours" {
			told, err := t.client.MoveToTrash(ctx, name)
			if err != nil {
				return err
			}
			if told != to {
				return fmt.Errorf("our client's trash has it at %s, not %s", told, to)
			}
		} else if _, err := t.a.ask("trash", name); err != nil {
			return err
		}
		if _, err := t.client.Stat(ctx, name); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is still there: %w", name, err)
		}
		if err := t.has(ctx, to, content); err != nil {
			return err
		}
	}
	if err := t.client.ExpungeTrash(ctx, false); err != nil {
		return err
	}
	entries, err := t.client.ReadDir(ctx, root)
	if err != nil {
		return err
	}
	if len(entries) != 1 || entries[0].Name() == "Current" {
		return fmt.Errorf("after the trash was set aside, it has %+v", entries)
	}
	if err := t.has(ctx, root+"/"+entries[0].Name()+t.dir+"/trash/ours", content); err != nil {
		return err
	}
	if err := t.client.ExpungeTrash(ctx, true); err != nil {
		return err
	}
	if entries, err = t.client.ReadDir(ctx, root); err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("after the trash was emptied, it has %+v", entries)
	}
	return nil
}

// onThreeNameNodes has one of three NameNodes be active, and another one, while our client
// works. It is told all of them, and that which is active last.
func onThreeNameNodes(ctx context.Context, c *common, dir, classpath string) (err error) {
	a, err := startApache(ctx, dir, classpath, true, 3)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	slices.Reverse(a.nameNodes)
	t, err := newApacheTrial(a, true, hdfs.ChecksumCRC32C)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.client.Close()) }()
	t.dir = "/three"
	take := func(words ...string) func() error {
		return func() error { _, err := a.ask(words...); return err }
	}
	return t.run(ctx, c, []apacheStep{
		{"three NameNodes: store, and read by both clients; the first two are standbys", t.store},
		{"three NameNodes: the active one hands over while a file is written", func(ctx context.Context) error { return t.writeThrough(ctx, "handed", take("hand", "1")) }},
		{"three NameNodes: the active one ends while a file is written", func(ctx context.Context) error { return t.writeThrough(ctx, "ended", take("end", "2")) }},
		{"three NameNodes: a standby comes back, takes over and ends while files are made, renamed, appended and removed", func(ctx context.Context) error {
			if err := take("revive", "1")(); err != nil {
				return err
			}
			return t.changeThrough(ctx, take("hand", "1"), take("end", "0"))
		}},
		{"three NameNodes: all of it is there, and checksums of files, both kinds", func(ctx context.Context) error {
			for name, length := range map[string]int{"handed": throughLength, "ended": throughLength} {
				if err := t.has(ctx, t.dir+"/"+name, named(t.dir+"/"+name, length)); err != nil {
					return err
				}
			}
			return t.checksums(ctx)
		}},
	})
}

const throughLength = 9_000_000

// writeThrough writes a file, in the middle of which something happens, and goes on.
func (t *apacheTrial) writeThrough(ctx context.Context, as string, happens func() error) error {
	name := t.dir + "/" + as
	content := named(name, throughLength)
	w, err := t.client.Create(ctx, name, hdfs.CreateOptions{})
	if err != nil {
		return err
	}
	at := 0
	for i, length := range []int{1_000_001, 2_000_000, len(content) - 3_000_001} {
		if _, err := w.Write(content[at : at+length]); err != nil {
			return errors.Join(err, w.Close())
		}
		at += length
		if i == 0 {
			err = errors.Join(w.Flush(ctx), happens())
		} else {
			err = w.Flush(ctx)
		}
		if err != nil {
			return errors.Join(err, w.Close())
		}
		// A NameNode that has just taken over hears from the DataNodes where the open block is.
		// Until it has, the block seems empty.
		if err := until(ctx, 10*time.Second, func() error { return t.shows(ctx, name, content[:at]) }); err != nil {
			return errors.Join(err, w.Close())
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return t.has(ctx, name, content)
}

// changeThrough makes, appends to, renames and removes files, four at a time, none of which
// may fail or be done twice, while things happen.
func (t *apacheTrial) changeThrough(ctx context.Context, happen ...func() error) error {
	work, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	var done [4]int
	for worker := range done {
		group.Go(func() error {
			for ; work.Err() == nil; done[worker]++ {
				if err := t.changeOne(ctx, fmt.Sprintf("%s/changes/%d-%d", t.dir, worker, done[worker])); err != nil {
					stop()
					return err
				}
			}
			return nil
		})
	}
	var err error
	for _, each := range happen {
		err = errors.Join(err, wait(work, 2*time.Second), each())
	}
	err = errors.Join(err, wait(work, 2*time.Second))
	stop()
	if err := errors.Join(group.Wait(), err); err != nil {
		return err
	}
	entries, err := t.client.ReadDir(ctx, t.dir+"/changes")
	if err != nil {
		return err
	}
	want := 0
	for _, n := range done {
		if want += n; n < 3 {
			return fmt.Errorf("%v files were changed: too few for something to happen in their middle", done)
		}
	}
	if len(entries) != want {
		return fmt.Errorf("%d files are there, %d were made", len(entries), want)
	}
	return nil
}

// changeOne leaves a file NAME-kept, and none of the others that it makes.
func (t *apacheTrial) changeOne(ctx context.Context, name string) error {
	w, err := t.client.Create(ctx, name, hdfs.CreateOptions{}) // fails if it is there
	if err != nil {
		return err
	}
	if _, err := w.Write([]byte("one")); err != nil {
		return errors.Join(err, w.Close())
	}
	if err := w.Close(); err != nil {
		return err
	}
	if w, err = t.client.Append(ctx, name, hdfs.AppendOptions{}); err != nil {
		return err
	}
	if _, err := w.Write([]byte(", two")); err != nil {
		return errors.Join(err, w.Close())
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := t.client.Rename(ctx, name, name+"-kept", false); err != nil {
		return err
	}
	if err := t.client.WriteFile(ctx, name, []byte("not for long"), 0o644); err != nil {
		return err
	}
	if err := t.client.Remove(ctx, name); err != nil {
		return err
	}
	return t.shows(ctx, name+"-kept", []byte("one, two"))
}
