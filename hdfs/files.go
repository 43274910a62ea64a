package hdfs

import (
	"context"
	"fmt"
	"io"
	"io/fs"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/client/lease"
	"github.com/verbena-data/verbena/hdfs/internal/client/reader"
	"github.com/verbena-data/verbena/hdfs/internal/client/writer"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// FileReader reads a file. ReadAt may be used concurrently, also with the other methods,
// of which one goroutine at a time may call one. The bytes are compared with their
// checksums. When a DataNode fails, the read goes on at another one.
type FileReader struct {
	c    *Client
	ctx  context.Context
	name string
	f    *reader.File
}

// Open opens a file for reading. ctx bounds opening, and Read, WriteTo and Stat as long as
// the file is open. A file that is being written is read up to where all DataNodes have
// acknowledged its bytes now.
func (c *Client) Open(ctx context.Context, name string) (*FileReader, error) {
	return c.openBy(ctx, &c.read, name)
}

// OpenUnverified is Open of a file whose bytes are not compared with their checksums, by nobody, to
// save what is left of one that is damaged: they are those that a DataNode has.
func (c *Client) OpenUnverified(ctx context.Context, name string) (*FileReader, error) {
	cfg := c.read
	cfg.Unverified = true
	return c.openBy(ctx, &cfg, name)
}

func (c *Client) openBy(ctx context.Context, cfg *reader.Config, name string) (*FileReader, error) {
	name = c.Abs(name)
	f, err := reader.Open(ctx, cfg, name)
	if err != nil {
		return nil, c.fail("open", name, err)
	}
	return &FileReader{c, ctx, name, f}, nil
}

// ReadFile returns the content of a file.
func (c *Client) ReadFile(ctx context.Context, name string) ([]byte, error) {
	f, err := c.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := f.Size()
	first := size
	if f.BeingWritten() { // a DataNode alone says how long it is
		first = min(size, 64<<20)
	}
	b, err := contents(size, first, func(b []byte, off int64) (int, error) { return f.f.ReadAt(ctx, b, off) })
	return b, c.fail("read", f.name, err)
}

// contents reads size bytes, or those before an error. It has memory for first bytes, 1 at least if
// there are any, and then for as many as have come.
func contents(size, first int64, readAt func(b []byte, off int64) (int, error)) ([]byte, error) {
	b := make([]byte, first)
	for n := int64(0); ; {
		m, err := readAt(b[n:], n)
		n += int64(m)
		if err != nil || n == size {
			return b[:n], err
		}
		b = append(b, make([]byte, min(size-n, n))...)
	}
}

// Name is the file's path.
func (f *FileReader) Name() string { return f.name }

// Size is the length when the file was opened or refreshed, in bytes.
func (f *FileReader) Size() int64 { return f.f.Length() }

// BeingWritten tells whether somebody was writing the file when it was opened or
// refreshed.
func (f *FileReader) BeingWritten() bool { return f.f.Growing() }

// Refresh finds out how long the file is by now.
func (f *FileReader) Refresh(ctx context.Context) error {
	return f.c.fail("refresh", f.name, f.f.Refresh(ctx))
}

// Stat asks the NameNode about the file, also when it has been closed.
func (f *FileReader) Stat() (fs.FileInfo, error) { return f.c.Stat(f.ctx, f.name) }

// Read is [io.Reader].
func (f *FileReader) Read(p []byte) (int, error) {
	n, err := f.f.Read(p)
	return n, f.c.fail("read", f.name, err)
}

// ReadAt is [io.ReaderAt].
func (f *FileReader) ReadAt(p []byte, off int64) (int, error) {
	return f.ReadAtContext(f.ctx, p, off)
}

// ReadAtContext is ReadAt with a context of its own.
func (f *FileReader) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	n, err := f.f.ReadAt(ctx, p, off)
	return n, f.c.fail("read", f.name, err)
}

// Seek is [io.Seeker].
func (f *FileReader) Seek(offset int64, whence int) (int64, error) {
	n, err := f.f.Seek(offset, whence)
	return n, f.c.fail("seek", f.name, err)
}

// WriteTo is [io.WriterTo].
func (f *FileReader) WriteTo(w io.Writer) (int64, error) {
	n, err := f.f.WriteTo(w)
	return n, f.c.fail("read", f.name, err)
}

// Close ends the reading, once the NameNode has heard of replicas that were found bad, or after
// 5 s. After it all methods that read fail with [fs.ErrClosed], and so does another Close.
func (f *FileReader) Close() error { return f.c.fail("close", f.name, f.f.Close()) }

// CreateOptions say how a file is made. Zero values stand for the client's defaults.
type CreateOptions struct {
	Mode        fs.FileMode // default: 0666 without [ClientConfig].Umask
	Replication int
	BlockSize   int64 // bytes, a multiple of the bytes per checksum
	Replace     bool  // a file that is there
	NoParents   bool  // make no directories above
	// StoragePolicy is the name of the file's storage policy; empty for that of its
	// directory.
	StoragePolicy string
	// LazyPersist asks for replicas in memory that are stored later, where DataNodes have
	// such memory. The file can't be appended to.
	LazyPersist bool
}

// ErrBlockMissing says that no DataNode gives a block that is read, for as long and as often as
// [ClientConfig].ReadFailures says: Java's BlockMissingException.
var ErrBlockMissing = reader.ErrMissing

// ErrFileReplaced says that a file which is being read is another one by now, or was truncated,
// so that the rest of it can't be had. A read never gives bytes of both.
var ErrFileReplaced = reader.ErrReplaced

// ErrLeaseLost says that a file which is being written is not this client's any more: its lease
// could not be renewed, or the NameNode has given it to another client.
var ErrLeaseLost = lease.ErrLost

// ErrTooFewReplicas says that a file was written and is not closed yet, because too few
// DataNodes have told the NameNode of its last blocks. It closes the file when they have, or
// when the lease expires.
var ErrTooFewReplicas = writer.ErrTooFewReplicas

// ErrNoDataNodeLeft says that all DataNodes of a block that was being written have failed,
// so that nobody has what was not flushed. What was flushed is on them.
var ErrNoDataNodeLeft = writer.ErrNoneLeft

// FileWriter writes a file. One goroutine at a time writes. What was written is certain
// to be kept when a Flush or the Close after it has returned nil; Sync has it on disks,
// too. When a DataNode fails, the write goes on with the others, and with new ones as
// [ClientConfig].Replace says. After Close or Abort what writes fails with [fs.ErrClosed].
type FileWriter struct {
	c    *Client
	ctx  context.Context
	name string
	s    *writer.Stream
	done func() // with the lease
}

// Create makes a file. ctx bounds making it and all that is done to write it, Close
// included: with its end the file is aborted.
func (c *Client) Create(ctx context.Context, name string, o CreateOptions) (*FileWriter, error) {
	name = c.Abs(name)
	w, err := c.create(ctx, name, o)
	return w, c.fail("create", name, err)
}

// Bits of CreateRequestProto.createFlag and AppendRequestProto.flag.
const (
	flagCreate      = 1
	flagOverwrite   = 2
	flagAppend      = 4
	flagLazyPersist = 0x10
	flagNewBlock    = 0x20
)

func (c *Client) create(ctx context.Context, name string, o CreateOptions) (*FileWriter, error) {
	cfg, defaults, err := c.writing(ctx)
	if err != nil {
		return nil, err
	}
	fill(&o.Replication, c.cfg.Replication)
	fill(&o.Replication, defaults.Replication)
	fill(&o.BlockSize, c.cfg.BlockSize)
	fill(&o.BlockSize, defaults.BlockSize)
	if o.Replication < 1 || o.Replication > largestReplication {
		return nil, fmt.Errorf("%d replicas: want 1 to %d: %w", o.Replication, largestReplication, fs.ErrInvalid)
	}
	if chunk := int64(cfg.Packets.Checksum().BytesPerChunk); o.BlockSize < chunk || o.BlockSize%chunk != 0 {
		return nil, fmt.Errorf("a block of %d bytes: want a multiple of %d, the bytes per checksum: %w", o.BlockSize, chunk, fs.ErrInvalid)
	}
	flag := uint32(flagCreate)
	if o.Replace {
		flag |= flagOverwrite
	}
	if o.LazyPersist {
		flag |= flagLazyPersist
	}
	masked, unmasked := c.modes(o.Mode, fileMode)
	req := &hdfspb.CreateRequestProto{
		Src: &name, Masked: masked, Unmasked: unmasked, ClientName: &c.holder, CreateFlag: &flag, CreateParent: proto.Bool(!o.NoParents),
		Replication: proto.Uint32(uint32(o.Replication)), BlockSize: proto.Uint64(uint64(o.BlockSize)),
	}
	if o.StoragePolicy != "" {
		req.StoragePolicy = &o.StoragePolicy
	}
	var resp hdfspb.CreateResponseProto
	if err := c.names.Call(ctx, "create", req, &resp); err != nil {
		return nil, err
	}
	if resp.GetFs().GetEcPolicy() != nil {
		return nil, fmt.Errorf("its directory codes files by erasure (%s), which this client does not do yet", resp.GetFs().GetEcPolicy().GetName())
	}
	file := writer.File{Path: name, ID: resp.GetFs().GetFileId(), BlockSize: o.BlockSize, Replication: o.Replication}
	return c.opened(ctx, name, writer.New(ctx, cfg, file, nil))
}

// opened has the lease on a file renewed.
func (c *Client) opened(ctx context.Context, name string, s *writer.Stream) (*FileWriter, error) {
	w := &FileWriter{c: c, ctx: ctx, name: name, s: s}
	w.done = c.lease.Add(s.Abort)
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.open[w] = struct{}{}
	}
	c.mu.Unlock()
	if closed {
		w.Abort()
		return nil, ErrClientClosed
	}
	return w, nil
}

// AppendOptions say how a file goes on.
type AppendOptions struct {
	// NewBlock leaves the last block as it is, even if it is not full.
	NewBlock bool
}

// Append opens a file to write at its end. ctx is as in [Client.Create].
func (c *Client) Append(ctx context.Context, name string, o AppendOptions) (*FileWriter, error) {
	name = c.Abs(name)
	w, err := c.append(ctx, name, o)
	return w, c.fail("append", name, err)
}

func (c *Client) append(ctx context.Context, name string, o AppendOptions) (*FileWriter, error) {
	cfg, _, err := c.writing(ctx)
	if err != nil {
		return nil, err
	}
	flag := uint32(flagAppend)
	if o.NewBlock {
		flag |= flagNewBlock
	}
	var resp hdfspb.AppendResponseProto
	if err := c.names.Call(ctx, "append", &hdfspb.AppendRequestProto{Src: &name, ClientName: &c.holder, Flag: &flag}, &resp); err != nil {
		return nil, err
	}
	st := resp.GetStat()
	if st == nil {
		// A NameNode from before 2.7 does not tell.
		info, err := c.Stat(ctx, name)
		if err != nil {
			return nil, err
		}
		st = info.s
	}
	if st.GetEcPolicy() != nil {
		return nil, fmt.Errorf("it is coded by erasure (%s), which this client does not do yet", st.GetEcPolicy().GetName())
	}
	file := writer.File{Path: name, ID: st.GetFileId(), BlockSize: int64(st.GetBlocksize()), Replication: int(st.GetBlockReplication())}
	last := resp.GetBlock()
	var s *writer.Stream
	if last == nil || o.NewBlock {
		s = writer.New(ctx, cfg, file, last.GetB())
	} else if s, err = writer.NewAppend(ctx, cfg, file, last); err != nil {
		return nil, err
	}
	return c.opened(ctx, name, s)
}

// Name is the file's path.
func (w *FileWriter) Name() string { return w.name }

// Write is [io.Writer]. It returns when the bytes are on their way.
func (w *FileWriter) Write(p []byte) (int, error) {
	n, err := w.s.Write(p)
	return n, w.c.fail("write", w.name, err)
}

// ReadFrom is [io.ReaderFrom]. It reads straight into packets.
func (w *FileWriter) ReadFrom(r io.Reader) (int64, error) {
	n, err := w.s.ReadFrom(r)
	return n, w.c.fail("write", w.name, err)
}

// Flush waits until all DataNodes of the pipeline have what was written, so that readers
// who open the file see it: hflush. The end of ctx ends the wait alone.
func (w *FileWriter) Flush(ctx context.Context) error {
	return w.c.fail("flush", w.name, w.s.Flush(ctx, writer.FlushOptions{}))
}

// Sync is Flush that also waits until the last block is on the DataNodes' disks: hsync.
// updateLength tells the NameNode the length, so that [Client.Stat] shows it.
func (w *FileWriter) Sync(ctx context.Context, updateLength bool) error {
	return w.c.fail("sync", w.name, w.s.Flush(ctx, writer.FlushOptions{Sync: true, UpdateLength: updateLength}))
}

// Close writes what is buffered and closes the file. It waits until its last blocks have
// as many replicas as the NameNode wants at least. After an error the file stays open at
// the NameNode until the lease expires, or [Client.RecoverLease]. It may be called again,
// and then returns the same.
func (w *FileWriter) Close() error {
	err := w.s.Close(w.ctx)
	w.left()
	return w.c.fail("close", w.name, err)
}

// Abort ends the writing at once and waits for that. What was flushed is kept. The file
// stays open at the NameNode until the lease expires, or [Client.RecoverLease].
func (w *FileWriter) Abort() {
	w.s.Abort(errAborted)
	w.left()
}

var errAborted = fmt.Errorf("the file was aborted: %w", fs.ErrClosed)

// left ends what the client does for the file.
func (w *FileWriter) left() {
	<-w.s.Done()
	w.done()
	w.c.mu.Lock()
	delete(w.c.open, w)
	w.c.mu.Unlock()
}

// WriteFile makes a file, or replaces it, and writes its content.
func (c *Client) WriteFile(ctx context.Context, name string, content []byte, mode fs.FileMode) error {
	w, err := c.Create(ctx, name, CreateOptions{Mode: mode, Replace: true})
	if err != nil {
		return err
	}
	if _, err := w.Write(content); err != nil {
		w.Abort()
		return err
	}
	return w.Close()
}
