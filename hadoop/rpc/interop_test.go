package rpc

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/colinmarc/hdfs/v2"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/verbena-data/verbena/hadoop/exception"
)

const clientProtocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"

// hadoopMethod makes a method of messages by their names: the foreign client
// brings their types along but does not export them.
func hadoopMethod(t *testing.T, request, response string, fn func(call *Call, req protoreflect.Message) (text string, err error)) Method {
	t.Helper()
	find := func(name string) protoreflect.MessageType {
		m, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("hadoop.hdfs." + name))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	in, out := find(request), find(response)
	return Method{
		decode: func(b []byte, _ int) (proto.Message, bool, error) {
			req := in.New().Interface()
			return req, false, proto.Unmarshal(b, req)
		},
		call: func(ctx context.Context, req proto.Message) (proto.Message, error) {
			text, err := fn(FromContext(ctx), req.ProtoReflect())
			if err != nil {
				return nil, err
			}
			resp := out.New().Interface()
			return resp, prototext.Unmarshal([]byte(text), resp)
		},
	}
}

func source(req protoreflect.Message) string {
	return req.Get(req.Descriptor().Fields().ByName("src")).String()
}

// The client of github.com/colinmarc/hdfs talks to a handful of NameNode
// methods, over TCP and over connections that its dialler makes.
func TestUnmodifiedClient(t *testing.T) {
	var mu sync.Mutex
	users := map[string]bool{}
	s := NewServer(Config{})
	s.Register(clientProtocol, 1, Methods{
		"getFileInfo": hadoopMethod(t, "GetFileInfoRequestProto", "GetFileInfoResponseProto", func(call *Call, req protoreflect.Message) (string, error) {
			mu.Lock()
			users[call.User] = true
			mu.Unlock()
			switch source(req) {
			case "/secret":
				return "", exception.New(exception.AccessControl, "Permission denied")
			case "/there":
				return `fs { fileType: IS_FILE path: "there" length: 12345 permission { perm: 420 } owner: "ada" group: "users" modification_time: 1 access_time: 2 }`, nil
			}
			return "", nil // success without fs: there is no such file
		}),
		"getFsStats": hadoopMethod(t, "GetFsStatusRequestProto", "GetFsStatsResponseProto", func(*Call, protoreflect.Message) (string, error) {
			return "capacity: 1000 used: 300 remaining: 700 under_replicated: 1 corrupt_blocks: 2 missing_blocks: 3", nil
		}),
		"renewLease": hadoopMethod(t, "RenewLeaseRequestProto", "RenewLeaseResponseProto", func(*Call, protoreflect.Message) (string, error) { return "", nil }),
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer serve(s, l)()

	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"tcp": nil,
		"pipe": func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go s.ServeConn(there) // ended and waited for by Close
			return here, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := hdfs.NewClient(hdfs.ClientOptions{Addresses: []string{l.Addr().String()}, User: "ada-" + name, NamenodeDialFunc: dial})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Stat("/missing"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a missing file: %v", err)
			}
			if _, err := c.Stat("/secret"); !errors.Is(err, os.ErrPermission) {
				t.Errorf("a forbidden file: %v", err)
			}
			info, err := c.Stat("/there")
			if err != nil || info.Size() != 12345 || info.Mode() != 0o644 {
				t.Errorf("a file: %v %v", info, err)
			}
			stats, err := c.StatFs()
			if err != nil || stats.Capacity != 1000 || stats.Remaining != 700 || stats.MissingBlocks != 3 {
				t.Errorf("getFsStats: %+v %v", stats, err)
			}
			err = c.Mkdir("/new", 0o755)
			var remote hdfs.Error
			if !errors.As(err, &remote) || remote.Exception() != string(exception.NoSuchMethod) || remote.Desc() != "ERROR_NO_SUCH_METHOD" {
				t.Errorf("a method that is not served: %v", err)
			}
			if _, err := c.StatFs(); err != nil {
				t.Errorf("after errors: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			if !users["ada-"+name] {
				t.Errorf("the server saw the users %v", users)
			}
		})
	}
}
