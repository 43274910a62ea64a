import java.io.File;
import java.util.Arrays;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.*;
import org.apache.hadoop.io.SequenceFile.CompressionType;
import org.apache.hadoop.io.compress.*;
import org.apache.hadoop.util.ReflectionUtils;

/** Writes the sequence files of this folder with Hadoop's own writer, and beside each what Hadoop shows of it. */
public final class Write {
  private static final Configuration conf = new Configuration();

  public static void main(String[] args) throws Exception {
    File dir = new File(args[0]);
    Class<?>[] codecs = {DefaultCodec.class, GzipCodec.class, BZip2Codec.class, SnappyCodec.class, Lz4Codec.class, ZStandardCodec.class};
    write(dir, "plain", CompressionType.NONE, null, 40, Text.class, IntWritable.class);
    for (Class<?> c : codecs) {
      for (CompressionType type : new CompressionType[] {CompressionType.RECORD, CompressionType.BLOCK}) {
        String name = type.toString().toLowerCase() + "-" + c.getSimpleName();
        try {
          write(dir, name, type, (CompressionCodec) ReflectionUtils.newInstance(c, conf), 60, LongWritable.class, Text.class);
        } catch (Throwable e) {
          System.err.println(name + " is left out: " + e);
          new File(dir, name + ".seq").delete();
          new File(dir, "." + name + ".seq.crc").delete();
        }
      }
    }
    Class<?>[] types = {BytesWritable.class, NullWritable.class, BooleanWritable.class, ByteWritable.class, ShortWritable.class, IntWritable.class,
        LongWritable.class, VIntWritable.class, VLongWritable.class, FloatWritable.class, DoubleWritable.class, MD5Hash.class, Text.class};
    for (Class<?> t : types) {
      write(dir, t.getSimpleName(), CompressionType.NONE, null, 12, NullWritable.class, t);
    }
  }

  private static void write(File dir, String name, CompressionType type, CompressionCodec codec, int records, Class<?> key, Class<?> value) throws Exception {
    SequenceFile.Metadata metadata = new SequenceFile.Metadata();
    metadata.set(new Text("made by"), new Text("Hadoop"));
    StringBuilder shown = new StringBuilder();
    Path path = new Path(new File(dir, name + ".seq").getAbsoluteFile().toURI());
    conf.setInt("io.seqfile.compress.blocksize", 1500);
    try (SequenceFile.Writer w = SequenceFile.createWriter(conf, SequenceFile.Writer.file(path), SequenceFile.Writer.keyClass(key),
        SequenceFile.Writer.valueClass(value), SequenceFile.Writer.compression(type, codec), SequenceFile.Writer.metadata(metadata))) {
      for (int i = 0; i < records; i++) {
        Writable k = make(key, i);
        Writable v = make(value, i);
        w.append(k, v);
        if (i % 15 == 14) {
          w.sync();
        }
        shown.append(k).append('\t').append(v).append('\n');
      }
    }
    new File(dir, "." + name + ".seq.crc").delete();
    String text = type == CompressionType.NONE ? name : "packed"; // which is the same for all codecs
    java.nio.file.Files.write(new File(dir, text + ".txt").toPath(), shown.toString().getBytes("UTF-8"));
  }

  private static final long[] numbers = {0, 1, -1, 127, -112, -113, 128, 255, -129, 65535, -65537, Long.MAX_VALUE, Long.MIN_VALUE, 1L << 40};
  private static final double[] reals = {0, -0.0, 1, 0.1, -2.5e-4, 1e7, 9999999.5, 1e300, 5e-324, Double.NaN, Double.NEGATIVE_INFINITY, 123456.789};

  private static Writable make(Class<?> c, int i) throws Exception {
    long n = numbers[i % numbers.length];
    double d = reals[i % reals.length];
    byte[] bytes = new byte[i];
    Arrays.fill(bytes, (byte) (17 * i));
    switch (c.getSimpleName()) {
      case "Text": return new Text("number " + i + " \u00e9\u4e2d\ud83d\ude00 " + "x".repeat(i % 200));
      case "BytesWritable": return new BytesWritable(bytes);
      case "NullWritable": return NullWritable.get();
      case "BooleanWritable": return new BooleanWritable(i % 2 == 0);
      case "ByteWritable": return new ByteWritable((byte) n);
      case "ShortWritable": return new ShortWritable((short) n);
      case "IntWritable": return new IntWritable((int) n);
      case "LongWritable": return new LongWritable(n);
      case "VIntWritable": return new VIntWritable((int) n);
      case "VLongWritable": return new VLongWritable(n);
      case "FloatWritable": return new FloatWritable((float) d);
      case "DoubleWritable": return new DoubleWritable(d);
      case "MD5Hash": return MD5Hash.digest(bytes);
      default: throw new IllegalArgumentException(c.getName());
    }
  }
}
