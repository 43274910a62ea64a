import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.storage.StorageLevel;
import scala.Tuple2;

/**
 * Spark's side of the comparison: the example GroupByTest, and sortByKey on the same pairs.
 * It makes and caches the pairs, prints "ready", and obeys lines on standard input, "groupby"
 * or "sortby", each answered by: milliseconds of the map stage, of the result stage, and how
 * many results there were. Arguments: mappers, pairs of each, bytes of a value, reducers, and
 * the storage level of the cache.
 */
public class Pairs {
  static final class Stages extends SparkListener {
    final LinkedBlockingQueue<StageInfo> done = new LinkedBlockingQueue<>();

    @Override
    public void onStageCompleted(SparkListenerStageCompleted event) {
      done.add(event.stageInfo());
    }

    long next() throws InterruptedException {
      StageInfo info = done.take();
      if (info.failureReason().isDefined()) throw new IllegalStateException(info.failureReason().get());
      return (Long) info.completionTime().get() - (Long) info.submissionTime().get();
    }
  }

  public static void main(String[] args) throws Exception {
    int mappers = Integer.parseInt(args[0]), each = Integer.parseInt(args[1]);
    int valueSize = Integer.parseInt(args[2]), reducers = Integer.parseInt(args[3]);
    Stages stages = new Stages();
    try (JavaSparkContext spark = new JavaSparkContext(new SparkConf())) {
      spark.sc().addSparkListener(stages);
      List<Integer> tasks = IntStream.range(0, mappers).boxed().collect(Collectors.toList());
      JavaPairRDD<Integer, byte[]> pairs =
          spark.parallelize(tasks, mappers).flatMapToPair(task -> make(each, valueSize)).persist(StorageLevel.fromString(args[4]));
      if (pairs.count() != (long) mappers * each) throw new IllegalStateException("not all pairs were made");
      stages.next();
      System.out.println("ready");
      BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        long results;
        if (line.equals("groupby")) {
          results = pairs.groupByKey(reducers).count();
        } else {
          JavaPairRDD<Integer, byte[]> sorted = pairs.sortByKey(true, reducers); // looks at a sample in a stage of its own
          if (reducers > 1) stages.next();
          results = sorted.count();
        }
        long map = stages.next(), result = stages.next();
        System.out.println(map + " " + result + " " + results);
      }
    }
  }

  /** Makes the pairs of a mapper as GroupByTest does, but one at a time. */
  static Iterator<Tuple2<Integer, byte[]>> make(int pairs, int valueSize) {
    Random random = new Random();
    return IntStream.range(0, pairs)
        .mapToObj(
            i -> {
              byte[] value = new byte[valueSize];
              random.nextBytes(value);
              return new Tuple2<>(random.nextInt(Integer.MAX_VALUE), value);
            })
        .iterator();
  }
}
