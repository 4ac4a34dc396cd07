-- Take a pool's lease, renew it, or with 0 milliseconds give it back.
-- KEYS: lease
-- ARGV: holder, milliseconds
-- Returns nothing where it is the caller's, else who holds it and for how many milliseconds.
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return {held, redis.call('PTTL', KEYS[1])} end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
elseif held then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return {}
