-- Grants each claim its whole TTL anew, if it holds the lock: [[name, claim, ttl], ...], ordered, in hexadecimal digits.
-- No stripe is locked: it touches rows that are there and have not expired, and whoever removes an expired row waits for it and
-- looks again.
CREATE PROCEDURE leasehold_renew(p_claims LONGTEXT CHARACTER SET utf8mb4)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SELECT asked.nth, h.token, h.expires_at > v_now + asked.ttl * 1000
  FROM JSON_TABLE(p_claims, '$[*]' COLUMNS (
    nth FOR ORDINALITY, name VARCHAR(510) PATH '$[0]', claim VARCHAR(64) PATH '$[1]', ttl BIGINT PATH '$[2]')) asked
  STRAIGHT_JOIN leasehold_holders h ON h.name = UNHEX(asked.name) AND h.claim = UNHEX(asked.claim)
  WHERE h.expires_at > v_now FOR UPDATE;
  UPDATE JSON_TABLE(p_claims, '$[*]' COLUMNS (
    name VARCHAR(510) PATH '$[0]', claim VARCHAR(64) PATH '$[1]', ttl BIGINT PATH '$[2]')) asked
  STRAIGHT_JOIN leasehold_holders h ON h.name = UNHEX(asked.name) AND h.claim = UNHEX(asked.claim)
  SET h.expires_at = v_now + asked.ttl * 1000, h.offered_to = NULL
  WHERE h.expires_at > v_now;
  COMMIT;
END
