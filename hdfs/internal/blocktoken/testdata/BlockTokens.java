// Prints golden vectors: identifiers of block tokens as Hadoop's own class writes them,
// and the passwords that its secret manager makes of them. With the jars of hadoop-client
// and hadoop-hdfs 3.4.1 in JARS they are made anew by
//
//   javac -cp "$JARS" -d /tmp BlockTokens.java && java -cp "/tmp:$JARS" BlockTokens | grep -v INFO
import java.util.EnumSet;
import org.apache.hadoop.fs.StorageType;
import org.apache.hadoop.hdfs.security.token.block.*;

public class BlockTokens {
  static String hex(byte[] b) {
    StringBuilder s = new StringBuilder();
    for (byte x : b) s.append(String.format("%02x", x));
    return s.toString();
  }

  static void print(String user, String pool, long block, String modes, StorageType[] types, String[] ids,
      long expiry, int key, byte[] message) throws Exception {
    EnumSet<BlockTokenIdentifier.AccessMode> set = EnumSet.noneOf(BlockTokenIdentifier.AccessMode.class);
    for (String m : modes.split(",")) if (!m.isEmpty()) set.add(BlockTokenIdentifier.AccessMode.valueOf(m));
    BlockTokenIdentifier id = new BlockTokenIdentifier(user, pool, block, set, types, ids, false);
    id.setExpiryDate(expiry);
    id.setKeyId(key);
    if (message != null) id.setHandshakeMsg(message);
    byte[] secret = new byte[32];
    for (int i = 0; i < secret.length; i++) secret[i] = (byte) i;
    BlockTokenSecretManager manager = new BlockTokenSecretManager(1000L, 1000L, pool, null, false);
    BlockKey k = new BlockKey(key, Long.MAX_VALUE, secret);
    manager.addKeys(new ExportedBlockKeys(true, 1000L, 1000L, k, new BlockKey[] {k}));
    String password = "";
    try {
      password = hex(manager.retrievePassword(id));
    } catch (Exception expired) {
      password = "expired";
    }
    System.out.println(hex(id.getBytes()) + " " + password);
  }

  public static void main(String[] args) throws Exception {
    StorageType[] disk = {StorageType.DISK};
    String[] one = {"DS-1"};
    byte[] generation = {0, 0, 0, 0, 0, 0, 3, (byte) 0xe9};
    print("ada", "BP-1", 1073741825L, "READ", new StorageType[0], new String[0], 4102444800000L, 1, generation);
    print("ada", "BP-1", 1073741825L, "WRITE", disk, one, 4102444800000L, 127, generation);
    print("", "", 0L, "READ,WRITE,COPY,REPLACE", new StorageType[0], new String[0], 4102444800000L, 128, generation);
    print("zoë", "BP-QAXV-1795399795830", Long.MAX_VALUE, "COPY", new StorageType[] {StorageType.SSD, StorageType.ARCHIVE},
        new String[] {"DS-a", "DS-b"}, Long.MAX_VALUE, Integer.MAX_VALUE, generation);
    print("bob", "BP-2", -2L, "REPLACE", new StorageType[0], new String[0], 4102444800000L, -113, generation);
    print("bob", "BP-2", 255L, "READ", new StorageType[0], new String[0], 4102444800000L, -112, null);
    print("bob", "BP-2", 256L, "READ", new StorageType[0], new String[0], 1L, Integer.MIN_VALUE, generation);
  }
}
