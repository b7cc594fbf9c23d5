CREATE TABLE IF NOT EXISTS leasehold_layout (
  only_row TINYINT NOT NULL DEFAULT 1 PRIMARY KEY,
  version INT NOT NULL
) ENGINE = InnoDB;

-- Locks are divided into 1,024 stripes by their names. Each has a row with the greatest token that was given to any of its locks, so that storage does not
-- grow with the number of names. Every call that decides who gets a lock locks the row of its stripe first, and so such calls run one after the other.
CREATE TABLE IF NOT EXISTS leasehold_tokens (
  stripe INT NOT NULL PRIMARY KEY,
  last BIGINT NOT NULL
) ENGINE = InnoDB;

-- One row for each claim that holds a lock, or was offered one. A free lock has no row. A row counts until expires_at; it is removed by the next call that
-- decides about the lock. All times are microseconds since 1970 by the server's clock, unless the column says otherwise.
CREATE TABLE IF NOT EXISTS leasehold_holders (
  name VARBINARY(255) NOT NULL,
  claim BINARY(32) NOT NULL,           -- SHA-256 of the claim id: a reader of the table can neither release nor renew
  mode INT NOT NULL,                   -- 0: exclusive, -1: shared, n: one of n permits
  token BIGINT NOT NULL,
  since BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  offered_to {listener_id}, -- the waiter's listener, if this is an offer that was not renewed yet
  number BIGINT,                       -- the waiter's number in its process
  ttl BIGINT,                          -- the waiter's TTL in milliseconds
  owner VARBINARY(255) NOT NULL,
  host VARBINARY(255) NOT NULL,
  pid BIGINT NOT NULL,
  reason VARBINARY(1024),
  PRIMARY KEY (name, claim),
  UNIQUE KEY checks (token, name),     -- what leasehold_check_lease locks
  KEY offers (offered_to)
) ENGINE = InnoDB;

-- The queues of all locks. A waiter leaves its queue when it is offered the lock, gives up, or is found to be dead.
CREATE TABLE IF NOT EXISTS leasehold_waiters (
  name VARBINARY(255) NOT NULL,
  claim BINARY(32) NOT NULL,
  position BIGINT NOT NULL AUTO_INCREMENT, -- the order of arrival
  mode INT NOT NULL,
  ttl BIGINT NOT NULL,                 -- milliseconds
  since BIGINT NOT NULL,
  listener {listener_id} NOT NULL, -- of its process, and
  number BIGINT NOT NULL,              -- its number there: where its notices go
  owner VARBINARY(255) NOT NULL,
  host VARBINARY(255) NOT NULL,
  pid BIGINT NOT NULL,
  reason VARBINARY(1024),
  PRIMARY KEY (name, claim),
  UNIQUE KEY positions (position),
  KEY in_order (name, position)
) ENGINE = InnoDB;

-- Notices to waiters that they should make another attempt, and when. (Offers are not here, but in leasehold_holders.) The listener reads them, and removes
-- them with its next call.
CREATE TABLE IF NOT EXISTS leasehold_notices (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  listener {listener_id} NOT NULL,
  number BIGINT NOT NULL,
  look_at BIGINT NOT NULL,
  KEY listeners (listener)
) ENGINE = InnoDB;

-- One row for each process that waits. Its waiters count as alive for as long as it does, which is until alive_until; but after sure_until only while
-- its connection also has the user-level lock 'leasehold-life:<id>', which ends with the connection. So a process that is killed counts as dead at once. Where
-- a listener cannot have that lock, both times are the same.
CREATE TABLE IF NOT EXISTS leasehold_listeners (
  id {listener_id} NOT NULL PRIMARY KEY,
  alive_until BIGINT NOT NULL,
  sure_until BIGINT NOT NULL
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS leasehold_records (
  id VARBINARY(288) NOT NULL PRIMARY KEY, -- leasehold's own keys are longer than a user's may be
  value LONGBLOB,                      -- null: the record was deleted, and only the rest is kept
  version BIGINT NOT NULL,
  token BIGINT NOT NULL,
  guarded_by VARBINARY(255),           -- the lock
  ends_at BIGINT,                      -- when its lifetime is over; null: never
  KEY ending (ends_at)
) ENGINE = InnoDB;

INSERT IGNORE INTO leasehold_tokens (stripe, last)
  WITH RECURSIVE digit (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM digit WHERE n < 31)
  SELECT high.n * 32 + low.n, 0 FROM digit high, digit low;
