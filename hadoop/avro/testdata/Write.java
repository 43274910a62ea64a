// Writes the Avro files beside it. The texts are what Hadoop's shell (3.4.1) shows of them,
// reading.txt of those that are named by a codec:
//
//	java -cp 'conf:JARS/*' Write.java
//	for f in *.avro; do java -cp 'conf:JARS/*' org.apache.hadoop.fs.FsShell -text file://$PWD/$f; done
//
// where JARS has the jars of hadoop-client-minicluster 3.4.1 and what it needs, and conf an
// empty core-site.xml.

import java.io.File;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.avro.Schema;
import org.apache.avro.file.CodecFactory;
import org.apache.avro.file.DataFileWriter;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;

class Write {
  static final String READING =
      "{'type':'record','name':'Reading','namespace':'org.example','doc':'of a sensor','fields':["
          + "{'name':'id','type':'long'},{'name':'name','type':['null','string'],'default':null},"
          + "{'name':'raw','type':'bytes'},{'name':'tags','type':{'type':'array','items':'string'}},"
          + "{'name':'counts','type':{'type':'map','values':['int','Reading']}},"
          + "{'name':'kind','type':{'type':'enum','name':'Kind','symbols':['COLD','WARM']}},"
          + "{'name':'key','type':{'type':'fixed','name':'other.Key','size':4}},{'name':'good','type':'boolean'},"
          + "{'name':'value','type':'double'},{'name':'share','type':'float'},"
          + "{'name':'at','type':{'type':'long','logicalType':'timestamp-millis'}},"
          + "{'name':'any','type':['null','Kind','other.Key',{'type':'array','items':'org.example.Kind'},{'type':'map','values':'null'},'Reading','bytes']}]}";

  static GenericRecord reading(Schema s, int i) {
    GenericRecord r = new GenericData.Record(s);
    Schema kind = s.getField("kind").schema(), key = s.getField("key").schema();
    Object warm = new GenericData.EnumSymbol(kind, i == 0 ? "COLD" : "WARM");
    r.put("id", (long) i << 40);
    r.put("name", i == 1 ? null : "n\u00e4me \"" + i + "\u0001\u007f\ud83c\udf3f/\\");
    r.put("raw", ByteBuffer.wrap(new byte[] {0, (byte) 200, '"', '\n', 127, (byte) i}));
    List<String> tags = new ArrayList<>();
    for (int n = 0; n < i; n++) {
      tags.add("<tag>\t" + n);
    }
    r.put("tags", tags);
    r.put("counts", i == 0 ? Collections.emptyMap() : Collections.singletonMap("k" + i, i == 2 ? reading(s, 1) : (Object) (-i)));
    r.put("kind", warm);
    r.put("key", new GenericData.Fixed(key, new byte[] {(byte) 255, 1, 2, (byte) i}));
    r.put("good", i == 1);
    r.put("value", i == 3 ? Double.NaN : i * 0.1 + 1e21 * i);
    r.put("share", i == 3 ? Float.NEGATIVE_INFINITY : i * 0.3f);
    r.put("at", 1700000000000L + i);
    Object[] any = {null, warm, new GenericData.Fixed(key, new byte[4]),
        new GenericData.Array<>(s.getField("any").schema().getTypes().get(3), Collections.singletonList(warm)),
        Collections.singletonMap("x", null), i > 0 ? reading(s, 0) : null, ByteBuffer.wrap(new byte[] {-1})};
    r.put("any", any[i % any.length]);
    return r;
  }

  static <T> void write(String name, String codec, Schema s, List<T> values) throws Exception {
    try (DataFileWriter<T> w = new DataFileWriter<>(new GenericDatumWriter<>(s))) {
      w.setCodec(CodecFactory.fromString(codec));
      w.create(s, new File(name + ".avro"));
      for (T v : values) {
        w.append(v);
      }
      w.sync();
      if (!values.isEmpty()) {
        w.append(values.get(0)); // a second block
      }
    }
  }

  public static void main(String[] args) throws Exception {
    Schema s = new Schema.Parser().parse(READING.replace('\'', '"'));
    List<GenericRecord> readings = new ArrayList<>();
    for (int i = 0; i < 7; i++) {
      readings.add(reading(s, i));
    }
    for (String codec : new String[] {"null", "deflate", "snappy", "bzip2"}) {
      write(codec, codec, s, readings);
    }
    write("string", "null", Schema.create(Schema.Type.STRING), List.of("one", "", "two\nlines"));
    write("empty", "deflate", Schema.create(Schema.Type.INT), List.of());
  }
}
