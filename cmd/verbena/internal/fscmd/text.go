package fscmd

import (
	"bufio"
	"cmp"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hadoop/avro"
	"github.com/verbena-data/verbena/hadoop/codec"
	"github.com/verbena-data/verbena/hadoop/sequencefile"
	"github.com/verbena-data/verbena/hdfs"
)

func textCommand(run runner) *cobra.Command {
	var unverified bool
	cmd := &cobra.Command{
		Use:   "text PATH...",
		Short: "Write files to standard output as text, unpacked",
		Long: `Files are unpacked that begin as gzip's or bzip2's do, or whose names end as those of
Hadoop's codecs (.deflate, .gz, .bz2, .snappy, .lz4, .zst). Of sequence files a line is
written for each record: key, tab and value; what is of a class outside Hadoop's
basic ones, in hexadecimal. Of Avro's files a line of JSON is written for each record.`,
		Args: atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			s.unverified = unverified
			return s.eachFile(ctx, args, func(f *hdfs.FileReader) error { return writeText(s.out, f.Name(), f) })
		}),
	}
	unverifiedFlag(cmd, &unverified)
	return cmd
}

// writeText writes what is in a file as text. What it is its first bytes tell, and then its
// name, in the order of org.apache.hadoop.fs.shell.Display.
func writeText(w io.Writer, name string, r io.Reader) error {
	b := bufio.NewReaderSize(r, 1<<20)
	head, err := b.Peek(4)
	if err != nil && err != io.EOF {
		return err
	}
	begins := func(magic string) bool { return strings.HasPrefix(string(head), magic) }
	var unpacked io.Reader = b
	switch c := codec.ByName(name); {
	case begins("\x1f\x8b"):
		if unpacked, err = gzip.NewReader(b); err != nil {
			return err
		}
	case begins(sequencefile.Magic):
		return writeRecords(w, b)
	case begins(avro.Magic):
		return writeAvro(w, b)
	case begins("BZh"):
		unpacked = bzip2.NewReader(b)
	case c != nil && len(head) > 0:
		r, err := c.Open(b)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, r)
		closed := r.Close()
		return cmp.Or(err, closed)
	}
	_, err = io.Copy(w, unpacked)
	return err
}

// writeRecords writes a line for each record of a sequence file.
func writeRecords(w io.Writer, r io.Reader) error {
	q, err := sequencefile.NewReader(r)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	for {
		key, value, err := q.Next()
		if err == io.EOF {
			return out.Flush()
		}
		if err == nil {
			err = writeRecord(out, q.Header(), key, value)
		}
		if err != nil {
			return errors.Join(err, out.Flush())
		}
	}
}

func writeRecord(out *bufio.Writer, h sequencefile.Header, key, value []byte) error {
	k, err := sequencefile.Text(h.KeyClass, key)
	if err != nil {
		return err
	}
	v, err := sequencefile.Text(h.ValueClass, value)
	if err != nil {
		return err
	}
	_, err = out.WriteString(k + "\t" + v + "\n")
	return err
}

// writeAvro writes a line of JSON for each record of an Avro file.
func writeAvro(w io.Writer, r io.Reader) error {
	q, err := avro.NewReader(r)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	for {
		record, err := q.Next()
		if err == io.EOF {
			return out.Flush()
		}
		if err == nil {
			_, err = out.Write(append(record, '\n'))
		}
		if err != nil {
			return errors.Join(err, out.Flush())
		}
	}
}
