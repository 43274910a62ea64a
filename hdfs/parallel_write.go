package hdfs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/sync/errgroup"
)

// WriteParallel makes a file with the first size bytes of from, by as many writers at a time,
// each with a pipeline of its own. They write files of whole blocks beside the one that is to
// be, which are joined (concat) when all are there, and renamed: nobody sees half a file. What
// was written of a file that fails is removed. from must be read by several goroutines at a
// time, as [io.ReaderAt] has it.
//
// More writers than there are blocks are of no use. HDFS wants all parts in one directory, and
// counts them with its quota of names until they are joined.
func (c *Client) WriteParallel(ctx context.Context, name string, from io.ReaderAt, size int64, writers int, o CreateOptions) error {
	name = c.Abs(name)
	return c.fail("write", name, c.writeParallel(ctx, name, from, size, writers, o))
}

func (c *Client) writeParallel(ctx context.Context, name string, from io.ReaderAt, size int64, writers int, o CreateOptions) (err error) {
	if size < 0 || writers < 1 {
		return fmt.Errorf("%d bytes by %d writers: %w", size, writers, fs.ErrInvalid)
	}
	replace := o.Replace
	o.Replace = false // parts have names of their own
	if !replace {
		if _, err := c.Stat(ctx, name); !errors.Is(err, fs.ErrNotExist) {
			return cmp.Or(err, fs.ErrExist)
		}
	}
	_, defaults, err := c.writing(ctx)
	if err != nil {
		return err
	}
	fill(&o.BlockSize, c.cfg.BlockSize)
	fill(&o.BlockSize, defaults.BlockSize)
	if o.BlockSize < 1 {
		return fmt.Errorf("blocks of %d bytes: %w", o.BlockSize, fs.ErrInvalid)
	}
	blocks := size / o.BlockSize
	if size%o.BlockSize > 0 {
		blocks++
	}
	part := max((blocks+int64(writers)-1)/int64(writers), 1) * o.BlockSize
	var parts []string
	base := fmt.Sprintf("%s.%s._PART_", name, rand.Text()[:8])
	for off := int64(0); off == 0 || off < size; off += part {
		parts = append(parts, fmt.Sprintf("%s%d", base, len(parts)))
	}
	defer func() {
		if err == nil {
			return
		}
		ctx := context.WithoutCancel(ctx)
		for _, p := range parts {
			if rerr := c.Remove(ctx, p); !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
	}()
	writing, ctxParts := errgroup.WithContext(ctx)
	for i, p := range parts {
		off := int64(i) * part
		writing.Go(func() error { return c.writePart(ctxParts, p, io.NewSectionReader(from, off, min(part, size-off)), o) })
	}
	if err := writing.Wait(); err != nil {
		return err
	}
	if len(parts) > 1 {
		if err := c.Concat(ctx, parts[0], parts[1:]...); err != nil {
			return err
		}
		parts = parts[:1]
	}
	return c.Rename(ctx, parts[0], name, replace)
}

func (c *Client) writePart(ctx context.Context, name string, from *io.SectionReader, o CreateOptions) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	// Making it goes to its end: were it given up, the NameNode might make it later.
	own, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	w, err := c.Create(own, name, o)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
	n, err := w.ReadFrom(from)
	if err == nil && n != from.Size() {
		err = fmt.Errorf("%s: %d bytes could be read of %d: %w", name, n, from.Size(), io.ErrUnexpectedEOF)
	}
	if err != nil {
		w.Abort()
		return err
	}
	return w.Close()
}
