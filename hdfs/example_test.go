package hdfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"os"
	"sync"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/providers"
)

// demo starts a NameNode and two DataNodes in this process, for the examples.
func demo(ctx context.Context) (rt *verbena.Runtime, nameNode string, stop func()) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	dir, err := os.MkdirTemp("", "verbena-example-")
	if err != nil {
		log.Fatal(err)
	}
	rt, err = verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		log.Fatal(err)
	}
	secret := dir + "/" + hdfs.SecretFile
	nn, err := hdfs.StartNameNode(ctx, hdfs.NameNodeConfig{Runtime: rt, Dir: dir + "/namenode", Listen: "127.0.0.1:0", ClusterSecret: secret, Replication: 2, Access: hdfs.AccessConfig{Superuser: "ada"}})
	if err != nil {
		log.Fatal(err)
	}
	var nodes []*hdfs.DataNode
	for i := range 2 {
		dn, err := hdfs.StartDataNode(ctx, hdfs.DataNodeConfig{Runtime: rt, Dir: fmt.Sprintf("%s/datanode-%d", dir, i), Listen: "127.0.0.1:0", NameNode: nn.Addr(), ClusterSecret: secret})
		if err != nil {
			log.Fatal(err)
		}
		nodes = append(nodes, dn)
	}
	return rt, nn.Addr(), func() {
		for _, dn := range nodes {
			dn.Close()
		}
		nn.Close()
		rt.Close()
		os.RemoveAll(dir)
	}
}

// connect returns a client over TCP, as for any HDFS.
func connect(nameNode string) *hdfs.Client {
	c, err := hdfs.NewClient(hdfs.ClientConfig{NameNodes: []string{nameNode}, User: "ada"})
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// A file is opened and read like any io.Reader.
func ExampleClient_Open() {
	ctx := context.Background()
	_, nameNode, stop := demo(ctx)
	defer stop()
	client := connect(nameNode)
	defer client.Close()
	if err := client.WriteFile(ctx, "/poem", []byte("Roses are red"), 0o644); err != nil {
		log.Fatal(err)
	}

	f, err := client.Open(ctx, "/poem")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(os.Stdout, f); err != nil {
		log.Fatal(err)
	}
	word := make([]byte, 3)
	if _, err := f.ReadAt(word, 10); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("\n%s\n", word)

	_, err = client.Open(ctx, "/prose")
	fmt.Println(errors.Is(err, fs.ErrNotExist))
	// Output:
	// Roses are red
	// red
	// true
}

// After a Flush (hflush) others read what was written, while the file is still open.
func ExampleFileWriter_Flush() {
	ctx := context.Background()
	_, nameNode, stop := demo(ctx)
	defer stop()
	client := connect(nameNode)
	defer client.Close()

	w, err := client.Create(ctx, "/log", hdfs.CreateOptions{Replication: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintln(w, "started")
	if err := w.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	seen, err := client.ReadFile(ctx, "/log")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", seen)
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: started
}

// A file that is closed goes on at its end.
func ExampleClient_Append() {
	ctx := context.Background()
	_, nameNode, stop := demo(ctx)
	defer stop()
	client := connect(nameNode)
	defer client.Close()
	if err := client.WriteFile(ctx, "/log", []byte("one\n"), 0o644); err != nil {
		log.Fatal(err)
	}

	w, err := client.Append(ctx, "/log", hdfs.AppendOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintln(w, "two")
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	content, err := client.ReadFile(ctx, "/log")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", content)
	// Output:
	// one
	// two
}

// What works on io/fs works on HDFS.
func ExampleClient_FS() {
	ctx := context.Background()
	_, nameNode, stop := demo(ctx)
	defer stop()
	client := connect(nameNode)
	defer client.Close()
	for _, name := range []string{"/data/a.txt", "/data/deep/b.txt"} {
		if err := client.WriteFile(ctx, name, []byte("content"), 0o644); err != nil {
			log.Fatal(err)
		}
	}

	err := fs.WalkDir(client.FS(ctx, "/data"), ".", func(name string, d fs.DirEntry, err error) error {
		fmt.Println(name, d.IsDir())
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// . true
	// a.txt false
	// deep true
	// deep/b.txt false
}

// Many goroutines read one file at different places; each of several writers makes a
// file of its own, and Concat joins them without copying.
func ExampleClient_Concat() {
	ctx := context.Background()
	_, nameNode, stop := demo(ctx)
	defer stop()
	client := connect(nameNode)
	defer client.Close()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	const parts = 4
	part := len(content) / parts

	var writers sync.WaitGroup
	for i := range parts {
		writers.Go(func() {
			if err := client.WriteFile(ctx, fmt.Sprintf("/part-%d", i), content[i*part:(i+1)*part], 0o644); err != nil {
				log.Fatal(err)
			}
		})
	}
	writers.Wait()
	if err := client.Concat(ctx, "/part-0", "/part-1", "/part-2", "/part-3"); err != nil {
		log.Fatal(err)
	}

	f, err := client.Open(ctx, "/part-0")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, f.Size())
	var readers sync.WaitGroup
	for i := range parts {
		readers.Go(func() {
			if _, err := f.ReadAt(got[i*part:(i+1)*part], int64(i*part)); err != nil {
				log.Fatal(err)
			}
		})
	}
	readers.Wait()
	fmt.Println(len(got), bytes.Equal(got, content))
	// Output: 1048576 true
}

// A large file goes by several pipelines at a time; nobody sees it before it is whole.
func ExampleClient_WriteParallel() {
	ctx := context.Background()
	_, nameNode, stop := demo(ctx)
	defer stop()
	client := connect(nameNode)
	defer client.Close()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB; an *os.File is an io.ReaderAt, too

	const writers = 2
	err := client.WriteParallel(ctx, "/large", bytes.NewReader(content), int64(len(content)), writers, hdfs.CreateOptions{BlockSize: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}

	got, err := client.ReadFile(ctx, "/large")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(got), bytes.Equal(got, content))
	// Output: 4194304 true
}

// A client with a Dialer moves its bytes by the best transport that both ends have, and
// by TCP where a server has never heard of Verbena.
func ExampleNewDialer() {
	ctx := context.Background()
	rt, nameNode, stop := demo(ctx)
	defer stop()

	dialer := hdfs.NewDialer(rt, "auto")
	defer dialer.Close()
	client, err := hdfs.NewClient(hdfs.ClientConfig{NameNodes: []string{nameNode}, User: "ada", Dialer: dialer})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := client.WriteFile(ctx, "/file", []byte("over registered memory"), 0o644); err != nil {
		log.Fatal(err)
	}
	content, err := client.ReadFile(ctx, "/file")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", content)
	// Output: over registered memory
}
