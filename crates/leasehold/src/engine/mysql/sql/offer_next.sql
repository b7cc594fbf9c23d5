-- Offers a lock whose offer has ended to the next waiter. If another call decides about the lock, or about another one of its stripe, nothing is done: that
-- one removes the expired offer itself, or the next call of leasehold_listen does. Nor is anything done while a transaction is open that has checked the lease
-- (leasehold_check_lease): a call that waits for it would keep the waiters of other locks waiting.
CREATE PROCEDURE leasehold_offer_next(p_name VARBINARY(255), p_listener {listener_id})
SQL SECURITY INVOKER
BEGIN
  DECLARE v_stripe INT DEFAULT CRC32(p_name) % 1024;
  DECLARE v_last, v_was, v_now, v_ended, v_locked BIGINT;
  DECLARE v_notices, v_wake MEDIUMTEXT CHARACTER SET ascii DEFAULT '';
{begin}
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT last INTO v_last FROM leasehold_tokens WHERE stripe = v_stripe FOR UPDATE SKIP LOCKED;
  SET v_was = v_last;
  IF v_last IS NOT NULL THEN
    SET v_now = {now};
    SELECT COUNT(*) INTO v_ended FROM leasehold_holders WHERE name = p_name AND expires_at <= v_now;
    SELECT COUNT(*) INTO v_locked FROM leasehold_holders ended
    STRAIGHT_JOIN leasehold_holders h FORCE INDEX (checks) ON h.token = ended.token AND h.name = ended.name
    WHERE ended.name = p_name AND ended.expires_at <= v_now FOR UPDATE SKIP LOCKED;
    IF v_locked = v_ended THEN
      -- Waiters may still expect what they met before that offer.
      CALL leasehold_admit(p_name, v_now, NULL, p_listener, 9223372036854775807, v_last, v_notices, v_wake);
    END IF;
  END IF;
{end_decision}
END
