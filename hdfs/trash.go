package hdfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/trash"
)

// ErrNoTrash says that the cluster and the client keep no trash.
var ErrNoTrash = errors.New("no trash is kept: fs.trash.interval is 0 here and at the NameNode")

// ErrInTrash says that what is to be moved to the trash is there already.
var ErrInTrash = errors.New("it is in the trash already")

// MoveToTrash moves a file or directory to the user's trash (/user/NAME/.Trash/Current),
// under its own path there, and returns where it is. What is in the trash already can't
// be moved there ([ErrInTrash]). The NameNode, or Hadoop's shell, empties the trash in time.
func (c *Client) MoveToTrash(ctx context.Context, name string) (string, error) {
	name = c.Abs(name)
	interval, err := c.trashInterval(ctx)
	if err != nil {
		return "", err
	}
	if interval == 0 {
		return "", c.fail("trash", name, ErrNoTrash)
	}
	if _, err := c.Stat(ctx, name); err != nil {
		return "", err
	}
	root := c.trashRoot()
	switch {
	case name == root || strings.HasPrefix(name, root+"/"):
		return "", c.fail("trash", name, ErrInTrash)
	case strings.HasPrefix(root+"/", strings.TrimSuffix(name, "/")+"/"):
		return "", c.fail("trash", name, errors.New("the trash is in it"))
	}
	return moveToTrash(ctx, c, name, path.Join(root, trash.Current, name))
}

func (c *Client) trashRoot() string { return path.Join(c.Home(), trash.Name) }

// trashCalls are the calls that a move to the trash takes.
type trashCalls interface {
	Stat(ctx context.Context, name string) (*FileInfo, error)
	MkdirAll(ctx context.Context, name string, mode fs.FileMode) error
	renameToTrash(ctx context.Context, from, to string) error
}

// trashTries is how often a move to the trash is tried.
const trashTries = 10

// moveToTrash moves name to a path in the trash, or beside it if something is there. What
// happens meanwhile has it try again: a checkpoint between making the directory and the
// rename. It goes beside a file that is where the directory should be; one further up is an
// error ([syscall.ENOTDIR]), as for Hadoop's shell.
func moveToTrash(ctx context.Context, c trashCalls, name, to string) (string, error) {
	beside := func(name string) string { return fmt.Sprintf("%s%d", name, time.Now().UnixMilli()) } // as Hadoop
	there := func(name string) bool {
		_, err := c.Stat(ctx, name)
		return err == nil
	}
	dir, base := path.Split(to)
	dir = path.Clean(dir)
	var err error
	for range trashTries {
		err = c.MkdirAll(ctx, dir, 0o700)
		if errors.Is(err, fs.ErrExist) {
			file := dir
			for file != "/" && !there(file) {
				file = path.Dir(file)
			}
			if file == "/" {
				return "", err
			}
			dir = beside(file) + strings.TrimPrefix(dir, file)
			continue
		}
		if err != nil {
			return "", err
		}
		to = path.Join(dir, base)
		if there(to) {
			to = beside(to)
		}
		if err = c.renameToTrash(ctx, name, to); err == nil {
			return to, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return "", err
}

// renameToTrash is Rename, of which the NameNode knows what it is for: it may protect
// directories.
func (c *Client) renameToTrash(ctx context.Context, from, to string) error {
	return c.call(ctx, "rename", from, "rename2", &hdfspb.Rename2RequestProto{Src: &from, Dst: &to, OverwriteDest: proto.Bool(false), MoveToTrash: proto.Bool(true)}, &hdfspb.Rename2ResponseProto{})
}

// ExpungeTrash removes what was set aside in the user's trash longer ago than trash is kept,
// and sets aside what is there now, under the time of now. If no trash is kept it removes all
// that was set aside before; immediately removes also what is there now. What has not the
// name of a time stays. The NameNode does the same by itself, where it keeps trash.
func (c *Client) ExpungeTrash(ctx context.Context, immediately bool) error {
	now := time.Now()
	if immediately {
		if err := setTrashAside(ctx, c, c.trashRoot(), now); err != nil {
			return err
		}
		return c.removeCheckpoints(ctx, func(time.Time) bool { return true })
	}
	interval, err := c.trashInterval(ctx)
	if err != nil {
		return err
	}
	err = c.removeCheckpoints(ctx, func(at time.Time) bool { return now.Sub(at) > interval })
	return errors.Join(err, setTrashAside(ctx, c, c.trashRoot(), now))
}

// checkpointCalls are the calls that a checkpoint takes.
type checkpointCalls interface {
	Stat(ctx context.Context, name string) (*FileInfo, error)
	Rename(ctx context.Context, from, to string, replace bool) error
}

// setTrashAside makes a checkpoint of what is in the trash. Where there is nothing, or somebody
// else makes one meanwhile, as the NameNode does, nothing is to be done.
func setTrashAside(ctx context.Context, c checkpointCalls, root string, now time.Time) error {
	current := path.Join(root, trash.Current)
	_, err := c.Stat(ctx, current)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for attempt := range trash.MostCheckpoints + 1 {
		err = c.Rename(ctx, current, path.Join(root, trash.Checkpoint(now, attempt)), false)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return err
}

// removeCheckpoints removes those of which old says so, by their time.
func (c *Client) removeCheckpoints(ctx context.Context, old func(time.Time) bool) error {
	root := c.trashRoot()
	entries, err := c.ReadDir(ctx, root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if at, ok := trash.Time(e.Name()); ok && old(at) {
			err = errors.Join(err, c.RemoveAll(ctx, path.Join(root, e.Name())))
		}
	}
	return err
}

// trashInterval is how long trash is kept; 0: there is none.
func (c *Client) trashInterval(ctx context.Context) (time.Duration, error) {
	if c.cfg.TrashInterval != 0 {
		return c.cfg.TrashInterval, nil
	}
	d, err := c.ServerDefaults(ctx)
	if err != nil {
		return 0, err
	}
	return d.TrashInterval, nil
}
