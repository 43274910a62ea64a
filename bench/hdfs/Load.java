import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Apache's client: obeys the lines that load.go tells of. Arguments: NameNode, NAME=VALUE... */
public final class Load {
  private static final int BUFFER = 1_000_000;
  private static final byte[] BYTES = new byte[BUFFER];

  private static FileSystem fs;
  private static Configuration conf;

  public static void main(String[] args) throws Exception {
    for (int i = 0; i < BUFFER; i++) {
      BYTES[i] = (byte) i;
    }
    conf = new Configuration();
    for (String arg : Arrays.asList(args).subList(1, args.length)) {
      String[] pair = arg.split("=", 2);
      conf.set(pair[0], pair[1]);
    }
    fs = FileSystem.get(new URI("hdfs://" + args[0]), conf);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String answer;
      try {
        answer = Arrays.stream(obey(line.split(" "))).mapToObj(Long::toString).collect(Collectors.joining(" "));
      } catch (Exception e) {
        answer = "!" + e;
      }
      System.out.println(answer.replace('\n', ' '));
      System.out.flush();
    }
    System.exit(0);
  }

  private static long[] obey(String[] words) throws Exception {
    Path path = new Path(words[1]);
    long[] n = new long[4];
    for (int i = 2; i < words.length; i++) {
      n[i - 2] = Long.parseLong(words[i]);
    }
    long began = System.nanoTime();
    switch (words[0]) {
      case "write":
        write(path, n[0], (short) n[1]);
        break;
      case "read":
        read(path, n[0]);
        break;
      case "small":
        small(words[1], n[0], n[1], (int) n[2]);
        break;
      case "pread":
        return pread(path, (int) n[0], (int) n[1], n[2], Long.MAX_VALUE);
      case "warm":
        return pread(path, Math.max(1, (int) n[0] / 10), (int) n[1], n[2] + 1, 16 << 20);
      case "hot":
        return pread(path, (int) n[0], (int) n[1], n[2], 16 << 20);
      case "stat":
        return timed((int) n[0], () -> fs.getFileStatus(path));
      case "delete":
        fs.delete(path, true);
        break;
      default:
        throw new IllegalArgumentException("no such command");
    }
    return new long[] {System.nanoTime() - began};
  }

  private static void write(Path path, long length, short replication) throws Exception {
    if (replication == 0) {
      replication = fs.getDefaultReplication(path);
    }
    try (FSDataOutputStream out = fs.create(path, true, conf.getInt("io.file.buffer.size", 4096), replication, fs.getDefaultBlockSize(path))) {
      for (long left = length; left > 0; ) {
        int n = (int) Math.min(left, BUFFER);
        out.write(BYTES, 0, n);
        left -= n;
      }
    }
  }

  private static void read(Path path, long length) throws Exception {
    byte[] buffer = new byte[BUFFER];
    long got = 0;
    try (FSDataInputStream in = fs.open(path)) {
      for (int n = in.read(buffer); n >= 0; n = in.read(buffer)) {
        got += n;
      }
    }
    if (got != length) {
      throw new IllegalStateException(path + " ends after " + got + " bytes of " + length);
    }
  }

  private static long[] pread(Path path, int count, int size, long seed, long span) throws Exception {
    long length = Math.min(span, fs.getFileStatus(path).getLen());
    Random random = new Random(seed);
    byte[] b = new byte[size];
    try (FSDataInputStream in = fs.open(path)) {
      return timed(count, () -> {
        long at = (random.nextLong() >>> 1) % (length - size + 1);
        in.readFully(at, b, 0, size);
        if (b[0] != (byte) (at % BUFFER)) {
          throw new IllegalStateException("byte " + at + " of " + path + " is " + b[0]);
        }
        return null;
      });
    }
  }

  private static long[] timed(int count, Callable<?> f) throws Exception {
    long[] took = new long[count];
    for (int i = 0; i < count; i++) {
      long began = System.nanoTime();
      f.call();
      took[i] = System.nanoTime() - began;
    }
    Arrays.sort(took);
    return new long[] {took[count / 2], took[count * 99 / 100]};
  }

  private static void small(String dir, long count, long size, int writers) throws Exception {
    AtomicLong next = new AtomicLong();
    Thread[] threads = new Thread[writers];
    Exception[] failed = new Exception[writers];
    for (int w = 0; w < writers; w++) {
      int which = w;
      threads[w] = new Thread(() -> {
        try {
          for (long i = next.getAndIncrement(); i < count; i = next.getAndIncrement()) {
            write(new Path(dir + "/" + i), size, (short) 0);
          }
        } catch (Exception e) {
          failed[which] = e;
        }
      });
      threads[w].start();
    }
    for (int w = 0; w < writers; w++) {
      threads[w].join();
      if (failed[w] != null) {
        throw failed[w];
      }
    }
  }
}
