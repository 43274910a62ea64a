package wire

import (
	stdbytes "bytes"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
)

func delimited(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(AppendLength(nil, len(b)), b...)
}

var edges = []int32{0, 1, -1, 63, 64, -64, -65, 127, 128, math.MaxInt32, math.MinInt32, CallIDSASL, CallIDPing}

// What is appended is what protobuf's own code makes of the same values, to
// the byte, and so is the size.
func TestAppendsWhatProtobufAppends(t *testing.T) {
	for _, id := range edges {
		for _, retry := range edges {
			for _, client := range [][]byte{nil, {}, stdbytes.Repeat([]byte{7}, 16)} {
				h := Request{CallID: id, ClientID: client, RetryCount: retry}
				want := delimited(t, &rpcpb.RpcRequestHeaderProto{RpcKind: rpcpb.RpcKindProto_RPC_PROTOCOL_BUFFER.Enum(),
					RpcOp: rpcpb.RpcRequestHeaderProto_RPC_FINAL_PACKET.Enum(), CallId: &id, ClientId: append([]byte{}, client...), RetryCount: &retry})
				if got := h.Append(nil); !stdbytes.Equal(got, want) || h.Size() != len(want) {
					t.Errorf("request %+v: %x (size %d), want %x", h, got, h.Size(), want)
				}
				ok := Response{CallID: id, ClientID: client, RetryCount: retry}
				pb := &rpcpb.RpcResponseHeaderProto{CallId: proto.Uint32(uint32(id)), Status: rpcpb.RpcResponseHeaderProto_SUCCESS.Enum(),
					ServerIpcVersionNum: proto.Uint32(Version), ClientId: append([]byte{}, client...), RetryCount: &retry}
				if got, want := ok.Append(nil), delimited(t, pb); !stdbytes.Equal(got, want) || ok.Size() != len(want) {
					t.Errorf("response %+v: %x, want %x", ok, got, want)
				}
				bad := ok
				bad.Status, bad.Exception, bad.Message, bad.Detail = StatusFatal, "java.io.IOException", string(make([]byte, 200)), 12
				pb.Status, pb.ExceptionClassName, pb.ErrorMsg = rpcpb.RpcResponseHeaderProto_FATAL.Enum(), &bad.Exception, &bad.Message
				pb.ErrorDetail = rpcpb.RpcResponseHeaderProto_FATAL_INVALID_RPC_HEADER.Enum()
				if got, want := bad.Append(nil), delimited(t, pb); !stdbytes.Equal(got, want) || bad.Size() != len(want) {
					t.Errorf("response %+v: %x, want %x", bad, got, want)
				}
			}
		}
	}
}

// A call is what protobuf's own code makes of it.
func TestSessionAppendsWhatProtobufAppends(t *testing.T) {
	for _, id := range edges {
		for _, retry := range edges {
			for _, version := range []uint64{0, 1, 127, 128, math.MaxUint64} {
				for _, long := range []int{0, 1, 128} {
					client, class, method := stdbytes.Repeat([]byte{7}, 16*long), "org.example.P"+strings.Repeat("x", long), "mkdirs"+strings.Repeat("y", long)
					request := make([]byte, 100*long)
					want := delimited(t, &rpcpb.RpcRequestHeaderProto{RpcKind: rpcpb.RpcKindProto_RPC_PROTOCOL_BUFFER.Enum(),
						RpcOp: rpcpb.RpcRequestHeaderProto_RPC_FINAL_PACKET.Enum(), CallId: &id, ClientId: client, RetryCount: &retry})
					want = append(want, delimited(t, &rpcpb.RequestHeaderProto{MethodName: &method, DeclaringClassProtocolName: &class, ClientProtocolVersion: &version})...)
					want = append(AppendLength(want, len(request)), request...)
					s := NewSession(client, class, version)
					got := append(s.Append(nil, id, retry, method, len(request)), request...)
					if !stdbytes.Equal(got, want) || s.Size(id, retry, method, len(request)) != len(want) {
						t.Fatalf("call %d, retry %d, version %d: %x, want %x", id, retry, version, got, want)
					}
				}
			}
		}
	}
}

func TestHeadersAllocateNothing(t *testing.T) {
	request := (&Request{CallID: 77, ClientID: make([]byte, 16)}).Append(nil)
	session := NewSession(make([]byte, 16), "org.apache.hadoop.hdfs.protocol.ClientProtocol", 1)
	call := session.Append(nil, 77, 0, "getFileInfo", 0)
	response := (&Response{CallID: 77, ClientID: make([]byte, 16)}).Append(nil)
	out := make([]byte, 0, 1<<10)
	if n := testing.AllocsPerRun(100, func() {
		h, _, err := ParseRequest(request)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, err := ParseRequest(call)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := ParseInvocation(rest); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ParseResponse(response); err != nil {
			t.Fatal(err)
		}
		out = h.Append(out[:0])
		out = session.Append(out, 77, 0, "getFileInfo", 1000)
		r := Response{CallID: h.CallID, ClientID: h.ClientID}
		out = r.Append(out)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The parsers agree with protobuf's own code about every message that it takes.
func FuzzHeaders(f *testing.F) {
	f.Add((&Request{CallID: -3, ClientID: make([]byte, 16), RetryCount: 4}).Append(nil))
	f.Add((&Response{CallID: 3, Status: StatusError, Exception: "x", Message: "y", Detail: 4}).Append(nil))
	call := NewSession(make([]byte, 16), "c", 300).Append(nil, 3, 4, "m", 0)
	f.Add(call)
	_, invocation, _ := Next(call)
	f.Add(invocation)
	f.Add([]byte{4, 8, 0, 16, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{10, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0x22, 0})
	f.Add([]byte{9, 0x1b, 0x08, 0x01, 0x1c, 0x18, 0x01, 0x22, 0x01, 0x07}) // a group
	f.Fuzz(func(t *testing.T, b []byte) {
		body, rest, err := Next(b)
		if err != nil {
			for what, err := range map[string]error{"request": second(ParseRequest(b)), "invocation": second(ParseInvocation(b)), "response": second(ParseResponse(b))} {
				if err == nil {
					t.Errorf("%s: taken, although there is no message", what)
				}
			}
			return
		}
		h, after, err := ParseRequest(b)
		pb := &rpcpb.RpcRequestHeaderProto{}
		if proto.Unmarshal(body, pb) == nil {
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			if !stdbytes.Equal(after, rest) || h.CallID != pb.GetCallId() || !stdbytes.Equal(h.ClientID, pb.GetClientId()) || h.RetryCount != pb.GetRetryCount() {
				t.Errorf("%+v, want %v", h, pb)
			}
			if pb.RpcKind == nil && h.Kind != -1 || pb.RpcKind != nil && h.Kind != int32(*pb.RpcKind) {
				t.Errorf("kind %d, want %v", h.Kind, pb.RpcKind)
			}
			if pb.RpcOp == nil && h.Op != -1 || pb.RpcOp != nil && h.Op != int32(*pb.RpcOp) {
				t.Errorf("operation %d, want %v", h.Op, pb.RpcOp)
			}
		}
		i, after, err := ParseInvocation(b)
		ipb := &rpcpb.RequestHeaderProto{}
		if proto.Unmarshal(body, ipb) == nil {
			if err != nil || !stdbytes.Equal(after, rest) || string(i.Method) != ipb.GetMethodName() || string(i.Class) != ipb.GetDeclaringClassProtocolName() || i.Version != ipb.GetClientProtocolVersion() {
				t.Errorf("%+v, %v, want %v", i, err, ipb)
			}
		} else if err == nil {
			t.Errorf("%+v was taken", i)
		}
		r, after, err := ParseResponse(b)
		rpb := &rpcpb.RpcResponseHeaderProto{}
		if proto.Unmarshal(body, rpb) == nil {
			if err != nil || !stdbytes.Equal(after, rest) || uint32(r.CallID) != rpb.GetCallId() || int32(r.Status) != int32(rpb.GetStatus()) ||
				r.Exception != rpb.GetExceptionClassName() || r.Message != rpb.GetErrorMsg() || !stdbytes.Equal(r.ClientID, rpb.GetClientId()) || r.RetryCount != rpb.GetRetryCount() {
				t.Errorf("%+v, %v, want %v", r, err, rpb)
			}
		} else if err == nil {
			t.Errorf("%+v was taken", r)
		}
	})
}

func second[A, B any](_ A, _ B, err error) error { return err }
