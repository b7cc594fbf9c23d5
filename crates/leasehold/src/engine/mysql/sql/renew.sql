-- Renews each claim that holds its lock, for its whole TTL. If more time than that is left, it stays as it is, unless the claim is to be shortened.
-- p_claims is [[name, claim, ttl, shorten], ...] with names and claims in hexadecimal digits, each claim once, in one order, so that two calls cannot wait for
-- each other. Returns, for each claim that was renewed, its number in the batch, its token, and whether its lock was cut short.
--
-- Every renewal changes the row, if only by a microsecond, so that its commit waits until the earlier changes that it has seen are on disk.
--
-- No stripe is locked: a renewal changes only rows that have not expired. A call that removes expired rows waits for the renewal's row locks, and then
-- sees the new time.
CREATE PROCEDURE leasehold_renew(p_claims LONGTEXT CHARACTER SET utf8mb4)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT;
{begin}
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SET v_now = {now};
  SELECT asked.nth, h.token, asked.shorten = 1 AND h.expires_at > v_now + asked.ttl * 1000
  FROM JSON_TABLE(p_claims, '$[*]' COLUMNS (
    nth FOR ORDINALITY, name VARCHAR(510) PATH '$[0]', claim VARCHAR(64) PATH '$[1]', ttl BIGINT PATH '$[2]', shorten INT PATH '$[3]')) asked
  STRAIGHT_JOIN leasehold_holders h ON h.name = UNHEX(asked.name) AND h.claim = UNHEX(asked.claim)
  WHERE h.expires_at > v_now FOR UPDATE;
  UPDATE JSON_TABLE(p_claims, '$[*]' COLUMNS (
    name VARCHAR(510) PATH '$[0]', claim VARCHAR(64) PATH '$[1]', ttl BIGINT PATH '$[2]', shorten INT PATH '$[3]')) asked
  STRAIGHT_JOIN leasehold_holders h ON h.name = UNHEX(asked.name) AND h.claim = UNHEX(asked.claim)
  SET h.expires_at = IF(asked.shorten = 1, v_now + asked.ttl * 1000, GREATEST(h.expires_at + 1, v_now + asked.ttl * 1000)), h.offered_to = NULL
  WHERE h.expires_at > v_now;
  COMMIT;
END
