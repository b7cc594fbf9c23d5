CREATE TABLE IF NOT EXISTS leasehold_layout (
  only_row TINYINT NOT NULL DEFAULT 1 PRIMARY KEY,
  version INT NOT NULL
) ENGINE = InnoDB;

-- The greatest token given in each stripe: storage does not grow with the number of names. Whoever decides about a lock first
-- locks the row of its stripe.
CREATE TABLE IF NOT EXISTS leasehold_tokens (
  stripe INT NOT NULL PRIMARY KEY,
  last BIGINT NOT NULL
) ENGINE = InnoDB;

-- A claim is kept as a hash: who reads the table cannot release or renew. All times are microseconds since 1970.
CREATE TABLE IF NOT EXISTS leasehold_holders (
  name VARBINARY(255) NOT NULL,
  claim BINARY(32) NOT NULL,
  mode INT NOT NULL,                   -- 0: exclusive, -1: shared, n: a permit of n
  token BIGINT NOT NULL,
  since BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  offered_to CHAR(32) CHARACTER SET ascii COLLATE ascii_bin, -- handed over, and its holder has not said a word yet
  number BIGINT,
  ttl BIGINT,                          -- of who was handed the lock
  owner VARBINARY(255) NOT NULL,
  host VARBINARY(255) NOT NULL,
  pid BIGINT NOT NULL,
  reason VARBINARY(1024),
  PRIMARY KEY (name, claim),
  UNIQUE KEY checks (token, name),     -- what a transaction of the user's locks: see leasehold_check_lease
  KEY offers (offered_to)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS leasehold_waiters (
  name VARBINARY(255) NOT NULL,
  claim BINARY(32) NOT NULL,
  place BIGINT NOT NULL AUTO_INCREMENT,
  mode INT NOT NULL,
  ttl BIGINT NOT NULL,                 -- milliseconds
  since BIGINT NOT NULL,
  listener CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  number BIGINT NOT NULL,
  look_at BIGINT,                      -- the holder's time was cut short: it ends then
  owner VARBINARY(255) NOT NULL,
  host VARBINARY(255) NOT NULL,
  pid BIGINT NOT NULL,
  reason VARBINARY(1024),
  PRIMARY KEY (name, claim),
  UNIQUE KEY places (place),
  KEY in_order (name, place),
  KEY looks (listener, look_at)
) ENGINE = InnoDB;

-- One row a process that waits. Its waiters are alive for as long as it is.
CREATE TABLE IF NOT EXISTS leasehold_listeners (
  id CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  alive_until BIGINT NOT NULL,
  sure_until BIGINT NOT NULL           -- later than this it is alive only while it has its lock of the server's own
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS leasehold_records (
  id VARBINARY(255) NOT NULL PRIMARY KEY,
  value LONGBLOB NOT NULL,
  version BIGINT NOT NULL,
  token BIGINT NOT NULL,
  guarded_by VARBINARY(255)
) ENGINE = InnoDB;

INSERT IGNORE INTO leasehold_tokens (stripe, last)
  WITH RECURSIVE digit (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM digit WHERE n < 31)
  SELECT high.n * 32 + low.n, 0 FROM digit high, digit low;
