  DECLARE v_stripe INT DEFAULT CRC32(p_name) % 1024;
  DECLARE v_last, v_was, v_now BIGINT;
  DECLARE v_notices, v_wake MEDIUMTEXT CHARACTER SET ascii DEFAULT '';
{begin}
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT last INTO v_last FROM leasehold_tokens WHERE stripe = v_stripe FOR UPDATE;
  -- The time is read after the stripe is locked: no decision is older than the one before it.
  SET v_now = {now}, v_was = v_last;
